#include "shoal/wire/at_once.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace shoal::wire::at_once_test {
namespace {

TEST(AtOnce, CallsForEachNumberOnceAndOnNoMoreThreadsThanItMay) {
  std::vector<std::atomic<int>> calls(200);
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  at_once(200, 4, [&](int i) {
    const int now = ++running;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::yield();
    ++calls[static_cast<std::size_t>(i)];
    --running;
  });
  for (const auto& count : calls) EXPECT_EQ(count, 1);
  EXPECT_LE(most, 4);
  at_once(0, 4, [](int) { FAIL(); });
}

TEST(AtOnce, ThrowsTheFirstErrorWhateverItsTypeAndBeginsNoMore) {
  std::atomic<int> calls{0};
  const auto body = [&](int i) {
    ++calls;
    if (i == 3) throw std::length_error("of the fourth");
  };
  EXPECT_THROW(at_once(1'000'000, 3, body), std::length_error);
  EXPECT_LT(calls, 1'000'000);
}

/// Has every new thread ask for a stack that no process can have, so that none starts.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 50);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

TEST(AtOnce, WhereNoThreadStartsTheCallerDoesAllOfIt) {
  const NoThreads none;
  ASSERT_THROW(std::thread([] {}).join(), std::system_error) << "a thread has started";
  int calls = 0;
  at_once(20, 8, [&](int) { ++calls; });
  EXPECT_EQ(calls, 20);
}

}  // namespace
}  // namespace shoal::wire::at_once_test
