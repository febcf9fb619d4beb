#pragma once

#include <chrono>

#include "shoal/base/clock.h"

namespace shoal {

/// A duration as a number of seconds.
template <class Rep, class Period>
constexpr double to_seconds(std::chrono::duration<Rep, Period> duration) {
  return std::chrono::duration<double>(duration).count();
}

/// So many seconds as a duration.
inline Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace shoal
