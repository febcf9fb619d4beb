#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/comm/group.h"

namespace shoal::checkpoint {

/// Runs `work` on every rank and returns all results in rank order, on all ranks. When the work of
/// a rank throws, every rank throws after all have tried: that rank its own error, the others one
/// of the same kind with the message of the first rank that failed.
std::vector<std::string> agree(const comm::Group& group, Duration timeout,
                               const std::function<std::string()>& work);

}  // namespace shoal::checkpoint
