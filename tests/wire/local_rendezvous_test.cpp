#include "shoal/wire/local_rendezvous.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "shoal/base/error.h"
#include "shoal/wire/arena.h"

namespace shoal::wire {
namespace {

using std::chrono::seconds;

Meeting meeting_of(const char* name, int rank, int size) {
  return {.name = std::string(name) + std::to_string(getppid()), .key = "secret", .rank = rank, .size = size, .control_bytes = 1 << 20};
}

std::string scratch() { return testing::TempDir(); }

TEST(LocalRendezvous, RanksSeeEachOthersMemoryAndEnd) {
  constexpr int kRanks = 3;
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      Arena arena({.virtual_bytes = 1 << 26, .limit_bytes = 1 << 20});
      auto* mine = static_cast<int*>(arena.allocate(64));
      mine[0] = 100 + rank;
      Meeting meeting = meeting_of("see", rank, kRanks);
      meeting.arena = &arena.segment();
      const Acquaintance all = meet(meeting, Deadline::in(seconds(20)), scratch());
      bool right = true;
      for (int peer = 0; peer < kRanks; ++peer)
        if (peer != rank) right &= *reinterpret_cast<int*>(all.arenas[peer].data() + arena.offset(mine)) == 100 + peer;
      if (rank == 2) {
        // The others must leave first: their descriptors become readable here.
        pollfd wait[2] = {{all.processes[0].get(), POLLIN, 0}, {all.processes[1].get(), POLLIN, 0}};
        for (int i = 0; i < 1000 && (wait[0].revents == 0 || wait[1].revents == 0); ++i) {
          poll(wait, 2, 0);
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        right &= wait[0].revents != 0 && wait[1].revents != 0;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      _exit(right ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(LocalRendezvous, NamesTheRankThatDidNotCome) {
  std::thread other([] { EXPECT_THROW(meet(meeting_of("missing", 1, 3), Deadline::in(std::chrono::milliseconds(600)), scratch()), Error); });
  try {
    meet(meeting_of("missing", 0, 3), Deadline::in(std::chrono::milliseconds(300)), scratch());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_EQ(error.message(), "these ranks did not come: 2");
    EXPECT_EQ(error.peer(), 2);
  }
  other.join();
}

TEST(LocalRendezvous, AWrongKeyStaysOutsideAndDisturbsNobody) {
  std::thread stranger([] {
    Meeting wrong = meeting_of("key", 1, 2);
    wrong.key = "guess";
    EXPECT_THROW(meet(wrong, Deadline::in(seconds(5)), scratch()), Error);
  });
  std::thread member([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    meet(meeting_of("key", 1, 2), Deadline::in(seconds(5)), scratch());
  });
  meet(meeting_of("key", 0, 2), Deadline::in(seconds(5)), scratch());
  stranger.join();
  member.join();
}

TEST(LocalRendezvous, TwoOfOneRankAreRefused) {
  std::thread first([] { EXPECT_THROW(meet(meeting_of("twice", 1, 3), Deadline::in(seconds(2)), scratch()), Error); });
  std::thread second([] { EXPECT_THROW(meet(meeting_of("twice", 1, 3), Deadline::in(seconds(2)), scratch()), Error); });
  EXPECT_THROW(meet(meeting_of("twice", 0, 3), Deadline::in(seconds(2)), scratch()), Error);
  first.join();
  second.join();
}

}  // namespace
}  // namespace shoal::wire
