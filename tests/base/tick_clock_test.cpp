#include "shoal/base/tick_clock.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <thread>

namespace shoal {
namespace {

// Within a twentieth of the time that has passed: what is held is the conversion, on a machine that may be busy.
TEST(TickClock, CountsAsTheSystemDoes) {
  const std::int64_t before = TickClock::now();
  const auto began = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  const TickClock clock;
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  const auto error = clock.time_at(before) - began;
  EXPECT_LT(std::abs(std::chrono::duration<double>(error).count()), 0.004) << "a count from before the clock was made";
  const std::int64_t later = TickClock::now();
  const auto now = Clock::now();
  EXPECT_GT(later, before);
  EXPECT_LT(std::abs(std::chrono::duration<double>(clock.time_at(later) - now).count()), 0.004);
  EXPECT_LT(clock.time_at(std::numeric_limits<std::int64_t>::min()), began) << "a count that cannot be";
  EXPECT_GT(clock.time_at(std::numeric_limits<std::int64_t>::max()), now);
}

}  // namespace
}  // namespace shoal
