#pragma once

#include <cstdint>

#include "shoal/base/clock.h"

namespace shoal::wire {

/// The most connections that two ranks have.
constexpr int kMostRails = 64;

/// Returns how many connections two ranks have that are so far apart, where nobody says: one below
/// a round trip of 5 ms, else rail 0 and one more for every 12 ms begun, at most `most`. The bytes
/// that a connection has on their way are limited by socket buffers, with Linux's defaults to about
/// 2.8 MB, so these carry at least 1.9 Gbit/s together. More of them would each take longer to find
/// out how much they may have on their way.
int rails_for(Duration round_trip, int most);

/// Returns how many connections to each of `peers` a process may have that may open `descriptors`:
/// it keeps kOtherDescriptors for all else, or half of them where that is less. At least 1, at most
/// kMostRails.
int rails_within(std::uint64_t descriptors, int peers);

}  // namespace shoal::wire
