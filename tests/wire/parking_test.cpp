#include "shoal/wire/parking.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

namespace shoal::wire::parking_test {
namespace {

using std::chrono::microseconds, std::chrono::nanoseconds;

TEST(SpinPolicy, SpinsLessWhileOthersNeedTheCoreAndRecovers) {
  SpinPolicy policy(2000, 400);
  EXPECT_EQ(policy.spins(), 2000);
  policy.yielded(nanoseconds(600));  // nobody else was there
  EXPECT_EQ(policy.spins(), 2000);
  for (int i = 0; i < 20; ++i) policy.yielded(microseconds(50));
  EXPECT_EQ(policy.spins(), 1);
  policy.yielded(nanoseconds(600));
  EXPECT_EQ(policy.spins(), 2);
  for (int i = 0; i < 20; ++i) policy.spinning_helped();
  EXPECT_EQ(policy.spins(), 2000);
}

TEST(SpinPolicy, AYieldThatTakesFourMicrosecondsMeansThatNobodyElseRan) {
  SpinPolicy policy(8, 1);
  policy.yielded(microseconds(4));
  EXPECT_EQ(policy.spins(), 8);
  policy.yielded(nanoseconds(4001));
  EXPECT_EQ(policy.spins(), 4);
}

TEST(SpinPolicy, WithACoreForEveryRankItSpins) {
  EXPECT_GT(SpinPolicy::for_ranks(1).spins(), 1);
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_GT(SpinPolicy::for_ranks(online).spins(), 1);
  EXPECT_EQ(SpinPolicy::for_ranks(online + 1).spins(), 1);
}

/// Returns when the thread sleeps in the kernel.
void await_sleep(const std::atomic<int>& thread) {
  for (const Deadline end = Deadline::in(std::chrono::seconds(60)); !end.passed();) {
    std::string text;
    std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::getline(stat, text);
    const auto state = text.rfind(") ");
    if (thread != 0 && state != text.npos && text[state + 2] == 'S') return;
    std::this_thread::yield();
  }
  ADD_FAILURE() << "it never sleeps";
}

TEST(ParkingLot, AWakeEndsTheSleepOfAll) {
  ParkingLot lot{};
  std::atomic<int> ids[3] = {};
  std::vector<std::thread> sleepers;
  const auto before = Clock::now();
  for (std::atomic<int>& id : ids) {
    ++lot.sleepers;
    sleepers.emplace_back([&lot, &id] {
      id = static_cast<int>(syscall(SYS_gettid));
      sleep_in(lot, 0, std::chrono::minutes(10));
    });
  }
  for (const std::atomic<int>& id : ids) await_sleep(id);
  wake(lot);
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(lot.wakeups.load(), 1u);
  EXPECT_LT(Clock::now() - before, std::chrono::minutes(5));
}

TEST(ParkingLot, AWakeWithoutASleeperCostsNothing) {
  ParkingLot lot{};
  wake(lot);
  EXPECT_EQ(lot.wakeups.load(), 0u);
}

TEST(ParkingLot, ASleepEndsAtOnceAfterAWakeAndElseAtItsLimit) {
  ParkingLot lot{};
  lot.wakeups = 5;
  const auto before = Clock::now();
  sleep_in(lot, 4, std::chrono::minutes(10));
  EXPECT_LT(Clock::now() - before, std::chrono::minutes(5));
  const auto again = Clock::now();
  sleep_in(lot, 5, microseconds(20'000));
  EXPECT_GE(Clock::now() - again, microseconds(19'000));
}

TEST(SpinPolicy, WithMoreRanksThanCoresItNeverSpins) {
  SpinPolicy policy = SpinPolicy::for_ranks(1 << 20);
  EXPECT_EQ(policy.spins(), 1);
  policy.spinning_helped();
  EXPECT_EQ(policy.spins(), 1);
}

constexpr Duration kSleep = std::chrono::milliseconds(1);

// The time limit of a sleep bounds the wait for a peer that ended without a wake, so `check` runs
// again and again.
TEST(WaitFor, ThrowsWhatTheCheckThrowsAndLeavesNoSleeper) {
  ParkingLot lot{};
  SpinPolicy policy(2, 2);
  int looked = 0;
  const auto wait = [&] {
    wait_for(
        lot, policy, [] { return false; },
        [&] {
          if (++looked == 6) throw looked;
          return kSleep;
        });
  };
  EXPECT_THROW(wait(), int);
  EXPECT_EQ(looked, 6);
  EXPECT_EQ(lot.sleepers.load(), 0u);
}

TEST(WaitFor, EndsWhenItIsReadyAndLooksAboutMeanwhile) {
  ParkingLot lot{};
  SpinPolicy policy(4, 3);
  int asked = 0;
  int looked = 0;
  wait_for(
      lot, policy, [&] { return ++asked > 20; },
      [&] {
        ++looked;
        return kSleep;
      });
  EXPECT_EQ(asked, 21);
  EXPECT_GT(looked, 0);
  EXPECT_EQ(lot.sleepers.load(), 0u);
}

}  // namespace
}  // namespace shoal::wire::parking_test
