#pragma once

#include <vector>

#include "shoal/schedule/action.h"

namespace shoal::schedule {

/// Adds the gathers and releases of stages whose parameters are sharded over other ranks (ZeRO-3,
/// FSDP) to a table of computations, with or without messages. A stage is gathered before a run of
/// actions that read its parameters, and released when others are used sooner: at any time each
/// rank holds the `held` stages that it uses next, and never more (0: all of its stages, each from
/// its first to its last use). Weight gradients read no parameters.
///
/// Ranks that hold the same stage gather it together: they follow the same list, so their gathers
/// meet. Throws Error(usage) for held < 0 and for a table that has gathers.
void add_gathers(Schedule& schedule, int held);

/// Returns true when a rank's list says when stages are gathered, and when that of any rank does.
bool has_gathers(const std::vector<Action>& actions);
bool has_gathers(const Schedule& schedule);

/// Returns the forward passes of a table, with gathers where the table has them: no rank holds more
/// stages at a time than it does in `schedule`.
Schedule forward_with_gathers(const Schedule& schedule);

}  // namespace shoal::schedule
