#pragma once

#include <string>
#include <vector>

#include "shoal/base/tick_clock.h"
#include "shoal/collective/flight/flight_book.h"
#include "shoal/collective/shared_memory/host_block.h"

namespace shoal::collective {

/// Describes the call that a rank has announced: "all_reduce of 5 x f32 by sum".
std::string describe(const Descriptor& d);

/// Returns the last operations that all ranks of a group have announced. `names[r]` is the rank in
/// the job. The ranks go on meanwhile: an entry that is overwritten while it is read is left out.
std::vector<FlightEntry> recorded_entries(const HostBlock& block, const std::vector<int>& names,
                                          const TickClock& clock);

}  // namespace shoal::collective
