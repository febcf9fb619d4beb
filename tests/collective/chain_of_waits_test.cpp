// Who is blamed by a rank that gives up while it waits for a rank that waits itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "tests/collective/host_ranks.h"

namespace shoal::collective::chain_of_waits_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr auto kShort = milliseconds(400), kLong = milliseconds(60'000);

/// Waits for a message of 4 bytes, and returns the error that comes instead.
std::optional<Error> missed_message(Communicator& c, int source, Duration timeout) {
  float x = 0;
  try {
    c.wait(c.start({.kind = Kind::kReceive,
                    .type = ElementType::kF32,
                    .buffer = {&x, &x, 1},
                    .peer = source,
                    .tag = 5,
                    .timeout = timeout}));
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// In a group that counts its ranks backwards: errors name those of the job.
TEST(ChainOfWaits, ATimeoutBlamesTheRankAtItsEnd) {
  std::atomic<int> ended = 0;
  on_threads(4, [&](HostCommunicator& c, int rank) {
    const auto part = c.split(rank > 0 ? 0 : -1, -rank);
    if (rank == 0) return;
    // A wait that is over: rank 1 waits for nobody any more.
    float x = 0;
    const Operation late{.kind = rank == 1 ? Kind::kReceive : Kind::kSend,
                         .type = ElementType::kF32,
                         .buffer = {&x, &x, 1},
                         .peer = rank == 1 ? 1 : 2,
                         .tag = 7};
    if (rank == 2) std::this_thread::sleep_for(milliseconds(50));
    if (rank < 3) part->run(late, Deadline::in(kLong));
    if (rank == 1) {
      while (ended < 2) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    const auto error = missed_message(*part, part->rank() + 1, rank == 3 ? kShort : kLong);
    ++ended;
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
    EXPECT_EQ(error->peer(), 1) << error->what();
    EXPECT_THAT(error->message(), HasSubstr("rank 2 has sent nothing with tag 5"));
    EXPECT_THAT(error->message(),
                HasSubstr("rank 3 waits for rank 2, rank 2 for rank 1, and rank 1 for nobody"));
  });
}

TEST(ChainOfWaits, ItGoesThroughCollectivesOfOtherGroups) {
  std::atomic<int> ended = 0;
  on_threads(3, [&](HostCommunicator& c, int rank) {
    const auto pair = c.split(rank > 0 ? 0 : -1, rank);
    if (rank == 2) {
      while (ended < 2) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    if (rank == 1) {
      float x = 0;
      EXPECT_THROW(pair->wait(pair->start({.kind = Kind::kAllReduce,
                                           .type = ElementType::kF32,
                                           .buffer = {&x, &x, 1},
                                           .timeout = kLong})),
                   Error);
      ++ended;
      return;
    }
    const auto error = missed_message(c, 1, kShort);
    ++ended;
    ASSERT_TRUE(error);
    EXPECT_EQ(error->peer(), 2) << error->what();
    EXPECT_THAT(error->message(),
                HasSubstr("rank 0 waits for rank 1, rank 1 for rank 2, and rank 2 for nobody"));
  });
}

TEST(ChainOfWaits, RanksThatWaitForEachOtherAreShown) {
  on_threads(2, [&](HostCommunicator& c, int rank) {
    const auto error = missed_message(c, 1 - rank, rank == 0 ? kShort : kLong);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->message(), HasSubstr("rank 0 waits for rank 1, rank 1 for rank 0"));
  });
}

}  // namespace
}  // namespace shoal::collective::chain_of_waits_test
