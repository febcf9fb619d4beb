#include "shoal/checkpoint/writing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/checkpoint/format/file.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/state_item.h"
#include "shoal/checkpoint/written_json.h"

namespace shoal::checkpoint {
namespace {

/// All holders of a box see the same items with as many replicas, so they come to the same answer
/// without a word.
std::vector<const StateItem*> items_to_write(const std::vector<StateItem>& items) {
  std::map<std::pair<int, int>, std::vector<std::size_t>> bytes_of_replica;
  std::vector<const StateItem*> mine;
  for (const StateItem& item : items) {
    auto& bytes = bytes_of_replica[{item.replicas, item.holders}];
    bytes.resize(item.replicas);
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += item.local.nbytes();
    if (least - bytes.begin() == item.replica) mine.push_back(&item);
  }
  return mine;
}

}  // namespace

std::vector<OwnBox> own_boxes(const std::vector<StateItem>& items) {
  check_items(items);
  std::vector<OwnBox> own;
  for (const StateItem* item : items_to_write(items)) {
    const auto boxes = boxes_of(*item);
    // Memory of the CPU is not copied: what `data` points to is the state itself, and `local` keeps
    // it.
    const at::Tensor local = item->local.is_cpu() ? item->local : item->local.cpu();
    const auto* data = static_cast<const char*>(local.const_data_ptr());
    for (const format::Box& box : boxes) {
      own.push_back(
          {{item->name, comm::element_type(local.scalar_type()), item->global_shape, box, {}},
           local,
           data});
      data += own.back().source.bytes();
    }
  }
  return own;
}

std::vector<std::string> left_to_others(const std::vector<StateItem>& items,
                                        const std::vector<OwnBox>& own) {
  std::set<std::string_view> written;
  for (const OwnBox& box : own) written.insert(box.source.tensor);
  std::vector<std::string> left;
  for (const StateItem& item : items) {
    const bool empty = std::count(item.global_shape.begin(), item.global_shape.end(), 0) > 0;
    if (!empty && !written.contains(item.name)) left.push_back(item.name);
  }
  return left;
}

std::string write_own(const std::string& folder, int rank, std::vector<format::Source> sources,
                      const std::vector<std::string>& left, const SaveOptions& options) {
  return to_json({format::write_shards(folder, fmt::format("shard-{:04}", rank), std::move(sources),
                                       options.max_shard_bytes, options.fsync),
                  left});
}

std::string complete(const std::string& directory, const std::string& folder, std::int64_t step,
                     const std::string& metadata, const std::vector<std::string>& parts,
                     const SaveOptions& options) {
  format::Manifest manifest{.step = step, .metadata = metadata};
  std::set<std::string> left;
  for (const std::string& part : parts) {
    RankPart one = part_from_json(part);
    left.insert(one.left.begin(), one.left.end());
    format::add_written(manifest, std::move(one.written));
  }
  // Without this a checkpoint that lacks a tensor would be found at the next load, too late.
  for (const format::LogicalTensor& tensor : manifest.tensors) left.erase(tensor.name);
  SHOAL_USER_CHECK(left.empty(), "checkpoint",
                   "no rank writes '{}': each leaves it to another one that holds it, too",
                   *left.begin());
  // The order is what makes a save atomic: the manifest describes files that are complete, the name
  // appears after the manifest, and older checkpoints go after the name is there.
  format::write_text(folder + "/" + format::kManifestName, format::to_json(manifest),
                     options.fsync);
  const std::string path = format::commit_step(directory, step, options.fsync);
  try {
    format::prune_steps(directory, options.keep_last, step);
  } catch (const std::exception& error) {
    // The save is done: whoever asked for it must not take it for failed. The next one tries again.
    fmt::print(stderr, "shoal: {} is complete, but older checkpoints stay: {}\n", path,
               error.what());
  }
  return path;
}

void check_save(std::int64_t step, const SaveOptions& options) {
  SHOAL_USER_CHECK(step >= 0 && options.max_shard_bytes > 0 && options.keep_last >= 0, "checkpoint",
                   "step={}, max_shard_bytes={}, keep_last={}", step, options.max_shard_bytes,
                   options.keep_last);
}

}  // namespace shoal::checkpoint
