#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/checkpoint/agreement.h"
#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/file.h"
#include "shoal/checkpoint/format/shard_writer.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/state_item.h"
#include "shoal/checkpoint/written_json.h"

namespace shoal::checkpoint {
namespace {

/// Which of the items this rank writes: of those with equally many replicas each goes to the replica with the fewest bytes so far. All holders of a
/// box see the same items with as many replicas, so they come to the same answer without a word.
std::vector<const StateItem*> items_to_write(const std::vector<StateItem>& items) {
  std::map<int, std::vector<std::size_t>> bytes_of_replica;
  std::vector<const StateItem*> mine;
  for (const StateItem& item : items) {
    auto& bytes = bytes_of_replica[item.replicas];
    bytes.resize(item.replicas);
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += item.local.nbytes();
    if (least - bytes.begin() == item.replica) mine.push_back(&item);
  }
  return mine;
}

std::vector<format::Source> sources_of(const std::vector<StateItem>& items) {
  std::vector<format::Source> sources;
  for (const StateItem* item : items_to_write(items)) {
    const std::size_t element = item->local.element_size();
    std::size_t offset = 0;
    for (const format::Box& box : boxes_of(*item)) {
      // Device tensors are fetched when their turn comes; each closure keeps its copy until it dies with the sources.
      auto data = [local = item->local, offset, element]() mutable -> const void* {
        if (!local.is_cpu()) local = local.cpu();
        return static_cast<const char*>(local.const_data_ptr()) + offset * element;
      };
      sources.push_back({item->name, comm::element_type(item->local.scalar_type()), item->global_shape, box, std::move(data)});
      offset += box.count();
    }
  }
  return sources;
}

void write_manifest(const std::string& folder, std::int64_t step, const std::string& metadata, const std::vector<std::string>& parts, bool sync) {
  format::Manifest manifest{.step = step, .metadata = metadata};
  for (const std::string& part : parts) format::add_written(manifest, written_from_json(part));
  format::write_text(folder + "/" + format::kManifestName, format::to_json(manifest), sync);
}

}  // namespace

std::string save(const std::string& directory, std::int64_t step, const std::vector<StateItem>& items, const std::string& metadata,
                 const comm::Group& group, const SaveOptions& options) {
  SHOAL_USER_CHECK(step >= 0 && options.max_shard_bytes > 0 && options.keep_last >= 0, "checkpoint", "step={}, max_shard_bytes={}, keep_last={}",
                   step, options.max_shard_bytes, options.keep_last);
  const bool first = group.rank() == 0;
  try {
    const std::string folder = agree(group, options.timeout, [&] { return first ? format::begin_step(directory, step) : ""; })[0];
    const auto parts = agree(group, options.timeout, [&] {
      check_items(items);
      const std::string stem = fmt::format("shard-{:04}", group.rank());
      return to_json(format::write_shards(folder, stem, sources_of(items), options.max_shard_bytes, options.fsync));
    });
    return agree(group, options.timeout, [&]() -> std::string {
      if (!first) return "";
      write_manifest(folder, step, metadata, parts, options.fsync);
      const std::string path = format::commit_step(directory, step, options.fsync);
      format::prune_steps(directory, options.keep_last, step);
      return path;
    })[0];
  } catch (...) {
    if (first) format::abandon_step(directory, step);
    throw;
  }
}

}  // namespace shoal::checkpoint
