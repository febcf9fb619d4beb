#pragma once

#include <string>
#include <string_view>

#include "shoal/schedule/action.h"

namespace shoal::schedule {

/// Returns a schedule as comma-separated text, one line a rank, one cell an action:
/// "0F0,0F1,1RECV_F0". This is the format of PyTorch's torch.distributed.pipelining (`_dump_csv`),
/// which reads and writes the same marks.
std::string to_csv(const Schedule& schedule);

/// Reads such text and checks the schedule. The rank that computes a stage holds it; empty cells
/// are idle slots; a file without sends and receives gets them. Throws Error(config) that names
/// `file`, line, cell and rule.
Schedule from_csv(std::string_view text, const std::string& file);

}  // namespace shoal::schedule
