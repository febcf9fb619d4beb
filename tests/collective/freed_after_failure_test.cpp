// After an error a rank frees its buffers. No peer writes to them afterwards, though it may have
// seen the rank's announcement before.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "tests/collective/host_ranks.h"

namespace shoal::collective::freed_after_failure_test {
namespace {

// Ranks 1 and 2 have announced the operation and come back to it when rank 0 has given it up.
TEST(FreedAfterFailure, MemoryOfARankIsNotWrittenAfterItsError) {
  constexpr std::size_t kElements = 300001;
  std::vector<std::vector<float>> memory(3, std::vector<float>(kElements, 1));
  std::atomic<int> announced{0};
  std::atomic<bool> reused{false};
  const auto await = [](auto&& ready) {
    while (!ready()) std::this_thread::yield();
  };
  const auto body = [&](HostCommunicator& c, int rank) {
    std::vector<float>& own = memory[static_cast<std::size_t>(rank)];
    const Handle handle = c.start({.kind = Kind::kAllReduce,
                                   .type = ElementType::kF32,
                                   .buffer = {own.data(), own.data(), own.size()}});
    ++announced;
    if (rank == 0) {
      await([&] { return announced == 3; });
      EXPECT_THROW(c.wait(handle, Deadline::in(std::chrono::milliseconds(1))), Error);
      own.assign(kElements, -7);
      reused = true;
      return;
    }
    await([&] { return reused.load(); });
    EXPECT_THROW(c.wait(handle), Error);
  };
  on_threads(3, body);
  EXPECT_EQ(memory[0], std::vector<float>(kElements, -7));
}

}  // namespace
}  // namespace shoal::collective::freed_after_failure_test
