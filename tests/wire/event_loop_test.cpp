#include "shoal/wire/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "tests/wire/socket_pair.h"

namespace shoal::wire::event_loop_test {
namespace {

constexpr Duration kLong = std::chrono::minutes(5);

TEST(EventLoop, CallsBackWhatIsReadyAsLongAsItIsWatched) {
  const auto [here, there] = socket_pair();
  EventLoop loop;
  int called = 0;
  std::uint32_t seen = 0;
  loop.watch(here.get(), EPOLLIN, [&](std::uint32_t events) { ++called, seen = events; });
  loop.run_once(Duration::zero());
  EXPECT_EQ(called, 0);
  ASSERT_EQ(send(there.get(), "x", 1, 0), 1);
  loop.run_once(kLong);
  loop.run_once(kLong);  // nobody has read the byte
  EXPECT_EQ(called, 2);
  EXPECT_EQ(seen, static_cast<std::uint32_t>(EPOLLIN));
  loop.remove(here.get());
  loop.run_once(Duration::zero());
  EXPECT_EQ(called, 2);
  loop.remove(here.get());  // once more does no harm
}

TEST(EventLoop, WatchingAgainReplacesEventsAndCallback) {
  const auto [here, there] = socket_pair();
  EventLoop loop;
  int first = 0;
  int second = 0;
  loop.watch(here.get(), EPOLLIN, [&](std::uint32_t) { ++first; });
  loop.watch(here.get(), EPOLLIN | EPOLLOUT, [&](std::uint32_t) { ++second; });
  loop.run_once(kLong);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
}

TEST(EventLoop, ACallbackMayForgetItselfAndOthers) {
  const auto [here, there] = socket_pair();
  EventLoop loop;
  int called = 0;
  const auto once = [&](std::uint32_t) {
    ++called;
    loop.remove(here.get());
    loop.remove(there.get());
  };
  loop.watch(here.get(), EPOLLOUT, once);
  loop.watch(there.get(), EPOLLOUT, once);
  loop.run_once(kLong);
  EXPECT_EQ(called, 1) << "the other was forgotten before it was called";
}

TEST(EventLoop, AWakeEndsOneWait) {
  EventLoop loop;
  loop.wake();
  const auto before = Clock::now();
  loop.run_once(kLong);
  EXPECT_LT(Clock::now() - before, kLong);
  const auto again = Clock::now();
  loop.run_once(std::chrono::milliseconds(20));
  EXPECT_GE(Clock::now() - again, std::chrono::milliseconds(19)) << "the wake was used up";
}

}  // namespace
}  // namespace shoal::wire::event_loop_test
