#include "shoal/base/for_each_index.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace shoal::for_each_index_test {
namespace {

TEST(ForEachIndex, CallsForEachNumberOnceAndOnNoMoreThreadsThanItMay) {
  std::vector<std::atomic<int>> calls(200);
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  for_each_index(200, 4, [&](std::size_t i) {
    const int now = ++running;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::yield();
    ++calls[i];
    --running;
  });
  for (const auto& count : calls) EXPECT_EQ(count, 1);
  EXPECT_LE(most, 4);
  for_each_index(0, 4, [](std::size_t) { FAIL(); });
}

TEST(ForEachIndex, ThrowsTheFirstErrorWhateverItsTypeAndBeginsNoMore) {
  std::atomic<int> calls{0};
  const auto body = [&](std::size_t i) {
    ++calls;
    if (i == 3) throw std::length_error("of the fourth");
  };
  EXPECT_THROW(for_each_index(1'000'000, 3, body), std::length_error);
  EXPECT_LT(calls, 1'000'000);
}

TEST(ForEachIndex, CallsOnceForEveryIndex) {
  for (const int threads : {1, 2, 9}) {
    for (const std::size_t count : {0, 1, 5, 100}) {
      std::vector<std::atomic<int>> calls(count + 1);
      for_each_index(count, threads, [&](std::size_t i) { ++calls.at(i); });
      for (std::size_t i = 0; i <= count; ++i) EXPECT_EQ(calls[i], i < count ? 1 : 0);
    }
  }
}

TEST(ForEachIndex, TheFirstErrorStopsTheRest) {
  int calls = 0;
  const auto body = [&](std::size_t i) {
    ++calls;
    if (i == 5) throw std::runtime_error("at five");
  };
  try {
    for_each_index(100, 1, body);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "at five");
  }
  EXPECT_EQ(calls, 6);
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

TEST(ForEachIndex, WhereNoThreadStartsTheCallerDoesAllOfIt) {
  const NoThreads none;
  ASSERT_THROW(std::thread([] {}).join(), std::system_error) << "a thread has started";
  int calls = 0;
  for_each_index(20, 8, [&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 20);
}

}  // namespace
}  // namespace shoal::for_each_index_test
