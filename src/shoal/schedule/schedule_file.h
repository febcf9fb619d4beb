#pragma once

#include <string>
#include <string_view>

#include "shoal/schedule/action.h"

namespace shoal::schedule {

/// A schedule as comma-separated text, one line a rank, one cell an action: "0F0,0F1,1RECV_F0". The
/// format of PyTorch's torch.distributed.pipelining (`_dump_csv`), which reads and writes the same
/// marks.
std::string to_csv(const Schedule& schedule);

/// The reverse. Who holds a stage follows from who computes it; empty cells are idle slots; a file
/// without sends and receives gets them. The schedule is checked. Throws Error(config) that names
/// `file`, line, cell and rule.
Schedule from_csv(std::string_view text, const std::string& file);

}  // namespace shoal::schedule
