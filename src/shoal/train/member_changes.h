#pragma once

#include <string>

#include "shoal/train/run_record.h"

namespace shoal::train {

/// Returns how many members a run has; 0: it is an ordinary one.
int members_of(const RunRecord& record);

/// Returns true where two runs have the same members, of ranks that own the same values: each rank
/// finds the exchanges of a checkpoint as it left them. Two runs without members are the same.
bool has_same_members(const RunRecord& saved, const RunRecord& now);

/// Returns a line that says what a run goes on with whose members were others, what begins anew and
/// what is lost; empty: they are the same.
std::string describe_member_changes(const RunRecord& saved, const RunRecord& now);

}  // namespace shoal::train
