#pragma once

#include <chrono>

namespace shoal {

using Clock = std::chrono::steady_clock;
using Duration = std::chrono::nanoseconds;

/// A point in time after which waiting is an error. Every wait has one; `never()` is for tests and
/// interactive tools only.
class Deadline {
 public:
  static Deadline in(Duration duration) { return Deadline(Clock::now() + duration); }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return Clock::now() >= at_; }
  /// Time left, never negative.
  Duration left() const {
    const auto now = Clock::now();
    return now >= at_ ? Duration::zero() : std::chrono::duration_cast<Duration>(at_ - now);
  }
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace shoal
