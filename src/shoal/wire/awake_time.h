#pragma once

#include <algorithm>

#include "shoal/base/clock.h"

namespace shoal::wire {

/// Measures time during which this process has run, so that a process that was held up itself
/// blames no peer for the silence of that time. Each tick counts as at most `longest`: a process
/// that is stopped for an hour and then ticks has been awake for `longest`. One that is always late
/// still counts, if more slowly, and finds silent peers in the end.
class AwakeTime {
 public:
  AwakeTime(Duration longest, Clock::time_point now) : longest_(longest), last_(now) {}

  void tick(Clock::time_point now) {
    total_ += std::min<Duration>(now - last_, longest_);
    last_ = now;
  }
  /// Returns the time awake until the last tick.
  Duration total() const { return total_; }

 private:
  Duration longest_;
  Clock::time_point last_;
  Duration total_{};
};

}  // namespace shoal::wire
