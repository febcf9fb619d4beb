#pragma once

#include <string>

#include "shoal/checkpoint/format/shard_writer.h"

namespace shoal::checkpoint {

/// What one rank wrote, as text on its way to rank 0.
std::string to_json(const format::Written& written);
format::Written written_from_json(const std::string& json);

}  // namespace shoal::checkpoint
