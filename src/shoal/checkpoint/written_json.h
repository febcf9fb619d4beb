#pragma once

#include <string>

#include "shoal/checkpoint/format/shard_writer.h"

namespace shoal::checkpoint {

/// Writes the files and tensors of one rank as JSON, for rank 0 to read.
std::string to_json(const format::Written& written);
format::Written written_from_json(const std::string& json);

}  // namespace shoal::checkpoint
