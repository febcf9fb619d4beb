#pragma once

#include <string>
#include <vector>

#include "shoal/base/tick_clock.h"
#include "shoal/collective/flight/flight_book.h"
#include "shoal/collective/shared_memory/host_block.h"

namespace shoal::collective {

/// The call that a rank has announced: "all_reduce of 5 x f32 by sum".
std::string describe(const Descriptor& d);

/// What all ranks of a group, `names` in the job, have announced last. They go on meanwhile: an
/// entry that has made room for another is left out.
std::vector<FlightEntry> remembered(const HostBlock& block, const std::vector<int>& names,
                                    const TickClock& clock);

}  // namespace shoal::collective
