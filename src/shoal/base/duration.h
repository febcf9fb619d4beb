#pragma once

#include <chrono>

namespace shoal {

/// A duration as a number of seconds.
template <class Rep, class Period>
constexpr double to_seconds(std::chrono::duration<Rep, Period> duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace shoal
