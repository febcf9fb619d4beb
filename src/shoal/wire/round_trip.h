#pragma once

#include "shoal/base/clock.h"

namespace shoal::wire {

/// Returns the round trip that the kernel measures on a connected socket: where nothing was sent
/// yet, that of the connecting packet. Zero where it has measured none.
Duration round_trip_of(int socket);

/// Returns how long the last words of a peer may come after the end of another of its connections,
/// where a packet takes `round_trip`: a second, and four round trips, in which a packet that is
/// lost twice is sent again.
Duration time_for_last_words(Duration round_trip);

}  // namespace shoal::wire
