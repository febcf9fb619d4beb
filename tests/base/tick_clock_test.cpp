#include "shoal/base/tick_clock.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <optional>
#include <thread>

namespace shoal::tick_clock_test {
namespace {

// Within a twentieth of the time that has passed. What is held is the conversion: clocks that were
// read while the program was held up between them are read again.
TEST(TickClock, CountsAsTheSystemDoes) {
  for (bool held_up = true; held_up;) {
    held_up = false;
    const auto at_once = [&](auto&& read) {
      const auto start = Clock::now();
      read();
      held_up |= Clock::now() - start > std::chrono::microseconds(200);
    };
    std::int64_t before = 0;
    std::int64_t later = 0;
    Clock::time_point began;
    Clock::time_point now;
    Clock::time_point told_before;
    Clock::time_point told_later;
    std::optional<TickClock> clock;
    at_once([&] { before = TickClock::now(), began = Clock::now(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    at_once([&] { clock.emplace(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    at_once([&] { told_before = clock->time_at(before); });
    at_once([&] { later = TickClock::now(), now = Clock::now(); });
    at_once([&] { told_later = clock->time_at(later); });
    held_up |= Clock::now() - began > std::chrono::milliseconds(160);
    if (held_up) continue;
    EXPECT_LT(std::abs(std::chrono::duration<double>(told_before - began).count()), 0.004)
        << "a count from before the clock was made";
    EXPECT_GT(later, before);
    EXPECT_LT(std::abs(std::chrono::duration<double>(told_later - now).count()), 0.004);
    EXPECT_LT(clock->time_at(std::numeric_limits<std::int64_t>::min()), began)
        << "a count that cannot be";
    EXPECT_GT(clock->time_at(std::numeric_limits<std::int64_t>::max()), now);
  }
}

}  // namespace
}  // namespace shoal::tick_clock_test
