#include "shoal/checkpoint/format/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shoal/base/check.h"
#include "shoal/checkpoint/format/shard_writer.h"
#include "shoal/checkpoint/format/store.h"

namespace shoal::checkpoint::format {
namespace {

/// The tensors of each file: largest first, each to the file that is smallest so far.
std::vector<std::vector<const LogicalTensor*>> spread(const Manifest& manifest, int files) {
  std::vector<const LogicalTensor*> tensors;
  for (const LogicalTensor& tensor : manifest.tensors) tensors.push_back(&tensor);
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto* a, const auto* b) { return a->bytes() > b->bytes(); });
  std::vector<std::vector<const LogicalTensor*>> parts(
      std::clamp<std::size_t>(tensors.size(), 1, files));
  std::vector<std::int64_t> bytes(parts.size());
  for (const LogicalTensor* tensor : tensors) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += tensor->bytes();
    parts[least - bytes.begin()].push_back(tensor);
  }
  return parts;
}

}  // namespace

std::string reshard(Reader& from, const std::string& directory, int files) {
  SHOAL_USER_CHECK(files >= 1, "checkpoint", "at least one file is needed: files={}", files);
  Manifest manifest{.step = from.manifest().step, .metadata = from.manifest().metadata};
  for (const Step& step : list_steps(directory)) {
    SHOAL_USER_CHECK(step.step != manifest.step, "checkpoint",
                     "'{}' exists already: name another folder", step.path);
  }
  const std::string folder = begin_step(directory, manifest.step);
  try {
    std::vector<char> values;
    int index = 0;
    for (const auto& part : spread(from.manifest(), files)) {
      std::vector<Source> sources;
      for (const LogicalTensor* tensor : part) {
        // Sources are written one after the other, so one buffer serves them all.
        const auto data = [&from, &values, tensor] { return (values = from.read(*tensor)).data(); };
        sources.push_back({tensor->name, tensor->type, tensor->shape, whole(tensor->shape),
                           blocks_of(tensor->type, data)});
      }
      add_written(manifest,
                  write_shards(folder, fmt::format("shard-{:04}", index++), std::move(sources),
                               std::numeric_limits<std::int64_t>::max(), true));
    }
    write_text(folder + "/" + kManifestName, to_json(manifest), true);
    return commit_step(directory, manifest.step, true);
  } catch (...) {
    abandon_step(directory, manifest.step);
    throw;
  }
}

}  // namespace shoal::checkpoint::format
