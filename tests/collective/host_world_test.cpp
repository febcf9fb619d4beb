// The control segment of a node, and the record of its first failure; ranks are objects of one
// thread.
#include "shoal/collective/shared_memory/host_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/wire/local_rendezvous.h"

namespace shoal::collective::host_world_test {
namespace {

using testing::HasSubstr;

class WorldOfThree : public testing::Test {
 protected:
  WorldOfThree() {
    const auto control = std::make_shared<wire::SharedSegment>(
        wire::SharedSegment::create("control", HostWorld::control_bytes()));
    for (int rank = 0; rank < 3; ++rank)
      worlds_.push_back(std::make_unique<HostWorld>(rank, 3, control));
  }
  Error caught(int rank) {
    try {
      worlds_[static_cast<std::size_t>(rank)]->check();
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorKind::kInternal, "none", "no error");
  }

  std::vector<std::unique_ptr<HostWorld>> worlds_;
};

TEST_F(WorldOfThree, TheFirstCauseIsThrownOnEveryRank) {
  EXPECT_FALSE(worlds_[0]->ended());
  EXPECT_EQ(worlds_[0]->cause_rank(), -1);
  worlds_[1]->abort(
      Error(ErrorKind::kNonFinite, "step", "the loss is nan").at(1, 3).in(412).hint("look"));
  worlds_[2]->abort(Error(ErrorKind::kData, "read", "a later cause"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(worlds_[static_cast<std::size_t>(rank)]->ended());
    EXPECT_EQ(worlds_[static_cast<std::size_t>(rank)]->cause_rank(), 1);
    const Error error = caught(rank);
    EXPECT_EQ(error.kind(), ErrorKind::kNonFinite);
    EXPECT_EQ(error.operation(), "step");
    EXPECT_EQ(error.rank(), rank);
    EXPECT_EQ(error.size(), 3);
    EXPECT_EQ(error.sequence(), 412u);
    EXPECT_EQ(error.hint(), "look");
    EXPECT_EQ(error.message(), rank == 1 ? "the loss is nan" : "rank 1 failed: the loss is nan");
    EXPECT_EQ(error.peer(), rank == 1 ? -1 : 1) << "the rank that failed is to blame";
  }
}

TEST_F(WorldOfThree, WhomTheCauseBlamesIsBlamedByAll) {
  worlds_[1]->abort(Error(ErrorKind::kPeerLost, "group", "rank 0 ended").from(0));
  EXPECT_EQ(caught(1).peer(), 0);
  EXPECT_EQ(caught(2).peer(), 0);
}

TEST_F(WorldOfThree, LongTextsAreCut) {
  const std::string text(5000, 'x');
  worlds_[0]->abort(Error(ErrorKind::kData, text, text).hint(text));
  const Error error = caught(0);
  EXPECT_EQ(error.operation(), text.substr(0, 63));
  EXPECT_EQ(error.message(), text.substr(0, 1023));
  EXPECT_EQ(error.hint(), text.substr(0, 511));
}

TEST_F(WorldOfThree, KnowsWhoHasLeft) {
  EXPECT_FALSE(worlds_[0]->has_left(1));
  worlds_[1]->leave();
  EXPECT_TRUE(worlds_[0]->has_left(1));
  EXPECT_FALSE(worlds_[0]->has_left(0));
  EXPECT_FALSE(worlds_[0]->has_left(2));
  EXPECT_NO_THROW(worlds_[0]->check());
}

TEST_F(WorldOfThree, HandsOutPagesOfTheControlSegment) {
  const std::size_t first = worlds_[0]->take_control(1);
  const std::size_t second = worlds_[2]->take_control(4097);
  const std::size_t third = worlds_[1]->take_control(4096);
  EXPECT_EQ(first % 4096, 0u);
  EXPECT_GE(first, HostWorld::first_block() + HostBlock::bytes(3)) << "behind the first group";
  EXPECT_EQ(second, first + 4096);
  EXPECT_EQ(third, second + 2 * 4096);
  for (std::size_t i = 0; i < 4096; ++i) ASSERT_EQ(worlds_[0]->at(third, 4096)[i], std::byte{0});
}

TEST_F(WorldOfThree, AFullControlSegmentIsAnError) {
  try {
    worlds_[0]->take_control(HostWorld::control_bytes());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_THAT(error.what(), HasSubstr("used up"));
  }
}

TEST_F(WorldOfThree, BelievesNoPlaceThatCannotBe) {
  const std::size_t all = HostWorld::control_bytes();
  EXPECT_EQ(worlds_[0]->at(all, 0), worlds_[0]->control() + all);
  EXPECT_EQ(worlds_[0]->at(0, all), worlds_[0]->control());
  const auto refused = [&](std::size_t offset, std::size_t bytes) {
    try {
      worlds_[0]->at(offset, bytes);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kData;
    }
    return false;
  };
  EXPECT_TRUE(refused(all + 1, 0));
  EXPECT_TRUE(refused(all, 1));
  EXPECT_TRUE(refused(1, all));
  EXPECT_TRUE(refused(~std::size_t{0}, 2));
}

TEST_F(WorldOfThree, NoRankWritesToItsPeersOnceAFailureIsBeingRecorded) {
  {
    const HostWorld::Touch touch(*worlds_[2]);
    EXPECT_TRUE(touch.allowed());
  }
  worlds_[0]->await_untouched();
  EXPECT_TRUE(worlds_[1]->claim_record());
  EXPECT_FALSE(worlds_[0]->claim_record());
  EXPECT_FALSE(HostWorld::Touch(*worlds_[2]).allowed());
  worlds_[0]->await_untouched();
}

TEST_F(WorldOfThree, ARankWaitsUntilNobodyWritesToItsMemory) {
  std::optional<HostWorld::Touch> touch(*worlds_[2]);
  std::atomic<bool> waited{false};
  std::thread other([&] {
    worlds_[0]->await_untouched();
    waited = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(waited);
  touch.reset();
  other.join();
  EXPECT_TRUE(waited);
}

/// Rank 1 of three is killed after it has begun to record a failure. Returns 0 where the others
/// hear of it.
int survive_a_rank_that_is_killed_while_it_reports(const std::string& name, int rank) {
  const wire::LocalRendezvousOptions options{.name = name,
                                             .key = "key",
                                             .rank = rank,
                                             .size = 3,
                                             .control_bytes = HostWorld::control_bytes(),
                                             .arena = nullptr};
  const Deadline end = Deadline::in(std::chrono::seconds(20));
  HostWorld world(rank, wire::local_rendezvous(options, end), nullptr);
  if (rank == 1 && world.claim_record()) kill(getpid(), SIGKILL);
  for (; !end.passed(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    try {
      world.check();
    } catch (const Error& error) {
      const bool expected = error.kind() == ErrorKind::kPeerLost && error.peer() == 1;
      return expected ? 0 : 2;
    }
  }
  return 1;
}

TEST(HostWorld, ARankThatIsKilledWhileItReportsAFailureHangsNobody) {
  const std::string name = "killed-while-it-reports-" + std::to_string(getpid());
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      int result = 3;
      try {
        result = survive_a_rank_that_is_killed_while_it_reports(name, rank);
      } catch (const std::exception&) {
      }
      std::_Exit(result);
    }
    ranks.push_back(child);
  }
  for (int rank = 0; rank < 3; ++rank) {
    int status = 0;
    waitpid(ranks[static_cast<std::size_t>(rank)], &status, 0);
    EXPECT_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), rank == 1 ? SIGKILL : 0)
        << "rank " << rank;
  }
}

}  // namespace
}  // namespace shoal::collective::host_world_test
