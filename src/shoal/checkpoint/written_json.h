#pragma once

#include <string>
#include <vector>

#include "shoal/checkpoint/format/shard_writer.h"

namespace shoal::checkpoint {

/// One rank's part of a save, as rank 0 must know it.
struct RankPart {
  format::Written written;
  std::vector<std::string> left;  ///< names of tensors that the rank leaves to others
};

/// Writes it as JSON, for rank 0 to read.
std::string to_json(const RankPart& part);
RankPart part_from_json(const std::string& json);

}  // namespace shoal::checkpoint
