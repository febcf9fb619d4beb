#pragma once

#include <cstdint>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/comm/group.h"

namespace shoal::comm {

/// How far the clock of a rank is ahead of that of rank 0.
struct ClockOffset {
  std::int64_t at_ns = 0;      ///< time of rank 0 at which it was measured
  std::int64_t offset_ns = 0;  ///< the rank's `Clock` minus that of rank 0
  std::int64_t error_ns = 0;   ///< the true offset differs by at most this
};

/// Names the clock of this process: processes on one running kernel and in one namespace of times
/// have one clock, and so one name. 0 where it cannot be known.
std::int64_t name_of_clock();

/// Measures the clocks of all ranks against that of rank 0, which returns one offset for each rank;
/// the others return nothing. Rank 0 sends a message to one rank after the other and reads the
/// answer, as NTP does (RFC 5905, section 8): the error is at most half of what the quickest of
/// `rounds` round trips took on the way. Ranks whose `clock` has the name of that of rank 0 read
/// the same one: their offset is 0, without an error. Collective.
std::vector<ClockOffset> measure_clock_offsets(const Group& group,
                                               std::int64_t clock = name_of_clock(),
                                               int rounds = 32);

/// Estimates the offset at another time from measurements before and after it, as clocks drift
/// evenly for a while.
std::int64_t offset_at(const ClockOffset& before, const ClockOffset& after, std::int64_t time_ns);

/// Computes the offset of a peer from one round trip: this rank sent at `sent` and received at
/// `received`, by its own clock; the peer received and answered at the other two, by its own.
ClockOffset offset_of_round_trip(std::int64_t sent, std::int64_t peer_received,
                                 std::int64_t peer_sent, std::int64_t received);

}  // namespace shoal::comm
