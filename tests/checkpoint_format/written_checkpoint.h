#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shoal/checkpoint/format/file.h"
#include "shoal/checkpoint/format/shard_writer.h"
#include "shoal/checkpoint/format/store.h"

namespace shoal::checkpoint::testing {

/// The elements of a box of a tensor whose element with global index i is `seed + i`.
inline std::vector<std::int32_t> counted(const format::Box& box, const format::Shape& shape,
                                         std::int32_t seed) {
  std::vector<std::int32_t> values;
  format::Shape at = box.begin;
  for (std::int64_t i = 0; i < box.count(); ++i) {
    std::int64_t index = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
    values.push_back(seed + static_cast<std::int32_t>(index));
    for (int d = static_cast<int>(shape.size()) - 1; d >= 0 && ++at[d] == box.end[d]; --d)
      at[d] = box.begin[d];
  }
  return values;
}

/// A box of such a tensor, ready to be written.
inline format::Source source(const std::string& tensor, const format::Shape& shape,
                             const format::Box& box, std::int32_t seed) {
  auto values = std::make_shared<std::vector<std::int32_t>>(counted(box, shape, seed));
  return {tensor, ElementType::kI32, shape, box,
          format::blocks_of(ElementType::kI32, [values] { return values->data(); })};
}

/// Writes a checkpoint of these sources in one file a writer; returns its path.
inline std::string write_checkpoint(const std::string& directory, std::int64_t step,
                                    const std::vector<std::vector<format::Source>>& writers,
                                    const std::string& metadata = R"({"cursor": 7})") {
  const std::string folder = format::begin_step(directory, step);
  format::Manifest manifest{.step = step, .metadata = metadata};
  for (std::size_t i = 0; i < writers.size(); ++i) {
    format::add_written(manifest, format::write_shards(folder, "shard-000" + std::to_string(i),
                                                       writers[i], 1 << 30, false));
  }
  format::write_text(folder + "/" + format::kManifestName, format::to_json(manifest), false);
  return format::commit_step(directory, step, false);
}

}  // namespace shoal::checkpoint::testing
