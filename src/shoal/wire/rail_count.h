#pragma once

#include "shoal/base/clock.h"

namespace shoal::wire {

/// The most connections that two ranks have.
constexpr int kMostRails = 64;

/// Returns how many connections two ranks have that are so far apart, where nobody says: one below
/// a round trip of 5 ms, else rail 0 and one more for every 12 ms begun, at most kMostRails. What a
/// connection has on its way is limited by socket buffers, with Linux's defaults to about 2.8 MB,
/// so these carry at least 1.9 Gbit/s together. More of them would each take longer to
/// find out how much they may have on their way.
int rails_for(Duration round_trip);

/// Returns the round trip that the kernel has measured on a connected socket, of which nothing was
/// sent yet: that of the connecting packet. Zero where it has measured none.
Duration round_trip_of(int socket);

}  // namespace shoal::wire
