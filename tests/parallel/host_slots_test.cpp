// Which slot of the pool of a host a unit gets.
#include "shoal/parallel/shard/host_slots.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>

#include "shoal/base/error.h"
#include "shoal/comm/shared_buffer.h"
#include "shoal/comm/world.h"

namespace shoal::parallel::host_slots_test {
namespace {

void on_two_ranks(const std::function<void(HostSlots&)>& body) {
  comm::run_on_threads(
      {.size = 2, .memory_limit_bytes = std::size_t{1} << 28, .timeout = std::chrono::seconds(60)},
      [&](const comm::Group& host) {
        HostSlots slots(host);
        body(slots);
      });
}

// A slot serves what takes three quarters of it or more.
TEST(HostSlots, TheSmallestFreeOneThatFitsIsTakenAgain) {
  on_two_ranks([](HostSlots& slots) {
    const HostSlots::Slot large = slots.take(1200);
    const HostSlots::Slot small = slots.take(1000);
    EXPECT_EQ(large->bytes(), 1200u);
    EXPECT_NE(small, large) << "the first one is taken";
    slots.give_back(large);
    slots.give_back(small);
    EXPECT_EQ(slots.take(900), small) << "both are free and would do";
    EXPECT_EQ(slots.take(900), large) << "just three quarters";
    slots.give_back(small);
    slots.give_back(large);
    EXPECT_EQ(slots.take(1000), small) << "all of it";
    slots.give_back(small);
    const HostSlots::Slot other = slots.take(749);
    EXPECT_NE(other, small);
    EXPECT_NE(other, large);
    EXPECT_THROW(slots.give_back(small), Error) << "it is free already";
  });
}

TEST(HostSlots, OneThatIsNotKeptIsFreed) {
  on_two_ranks([](HostSlots& slots) {
    slots.keep_new(false);
    HostSlots::Slot once = slots.take(1000);
    const std::weak_ptr<comm::SharedBuffer> seen = once;
    slots.give_back(once);
    once.reset();
    EXPECT_TRUE(seen.expired());
    slots.keep_new(true);
    const HostSlots::Slot kept = slots.take(1000);
    slots.give_back(kept);
    EXPECT_EQ(slots.take(1000), kept);
  });
}

}  // namespace
}  // namespace shoal::parallel::host_slots_test
