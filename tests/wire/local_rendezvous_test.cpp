#include "shoal/wire/local_rendezvous.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "shoal/base/error.h"
#include "shoal/wire/arena.h"

namespace shoal::wire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A deadline for a slow machine.
Deadline soon() { return Deadline::in(seconds(60)); }

/// The process number of the test program; its forked ranks use it for the name of the rendezvous.
const pid_t kProgram = getpid();

LocalRendezvousOptions options_of(const char* name, int rank, int size) {
  return {.name = std::string(name) + std::to_string(kProgram),
          .key = "secret",
          .rank = rank,
          .size = size,
          .control_bytes = 1 << 20};
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
      LocalRendezvousOptions options = options_of("see", rank, kRanks);
      options.arena = &arena.segment();
      const LocalRendezvousResult all = local_rendezvous(options, soon(), scratch());
      bool right = true;
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer != rank) {
          right &=
              *reinterpret_cast<int*>(all.arenas[peer].data() + arena.offset(mine)) == 100 + peer;
        }
      }
      if (rank == 2) {
        // The others must leave first: their descriptors become readable here.
        pollfd wait[2] = {{all.processes[0].get(), POLLIN, 0}, {all.processes[1].get(), POLLIN, 0}};
        for (const Deadline end = soon();
             !end.passed() && (wait[0].revents == 0 || wait[1].revents == 0);) {
          poll(wait, 2, 0);
          std::this_thread::sleep_for(milliseconds(10));
        }
        right &= wait[0].revents != 0 && wait[1].revents != 0;
      } else {
        std::this_thread::sleep_for(milliseconds(100));
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

// Rank 1 comes, and is given more time when it was held up; rank 2 never does.
TEST(LocalRendezvous, NamesTheRankThatDidNotCome) {
  std::string message;
  for (auto patience = milliseconds(300);
       message != "these ranks did not come: 2" && patience < seconds(60); patience *= 4) {
    std::thread other([&] {
      EXPECT_THROW(
          local_rendezvous(options_of("missing", 1, 3), Deadline::in(2 * patience), scratch()),
          Error);
    });
    try {
      local_rendezvous(options_of("missing", 0, 3), Deadline::in(patience), scratch());
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
      message = error.message();
      EXPECT_EQ(error.peer(), message.back() == '2' && message.find('1') == message.npos ? 2 : 1);
    }
    other.join();
  }
  EXPECT_EQ(message, "these ranks did not come: 2");
}

TEST(LocalRendezvous, AWrongKeyIsTurnedAwayAndDisturbsNobody) {
  std::thread stranger([] {
    LocalRendezvousOptions wrong = options_of("key", 1, 2);
    wrong.key = "guess";
    EXPECT_THROW(local_rendezvous(wrong, Deadline::in(seconds(5)), scratch()), Error);
  });
  std::thread member([] {
    std::this_thread::sleep_for(milliseconds(50));
    local_rendezvous(options_of("key", 1, 2), soon(), scratch());
  });
  local_rendezvous(options_of("key", 0, 2), soon(), scratch());
  stranger.join();
  member.join();
}

// A rank whose hello message comes long after its connection is waited for. Connections that never
// send one delay nobody.
TEST(LocalRendezvous, ALateHelloMessageIsRead) {
  struct {
    std::uint32_t magic = 0x53484f31;
    std::int32_t rank = 2, size = 3, shares = 0;
    char key[64] = "secret";
  } hello;
  const LocalRendezvousOptions options = options_of("late", 0, 3);
  const std::string path = rendezvous_directory(scratch()) + "/" + options.name;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  std::thread host([&] { EXPECT_NO_THROW(local_rendezvous(options, soon(), scratch())); });
  std::vector<Descriptor> callers;
  while (callers.size() < 4) {
    Descriptor caller(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const bool open =
        connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    open ? callers.push_back(std::move(caller)) : std::this_thread::sleep_for(milliseconds(1));
  }
  std::thread other(
      [] { EXPECT_NO_THROW(local_rendezvous(options_of("late", 1, 3), soon(), scratch())); });
  std::this_thread::sleep_for(milliseconds(1500));
  EXPECT_EQ(send(callers[2].get(), &hello, sizeof hello, MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof hello));
  host.join();
  other.join();
}

// Rank 2 connects and dies; its hello message comes when its process is gone.
TEST(LocalRendezvous, ARankThatDiedIsNamed) {
  struct {
    std::uint32_t magic = 0x53484f31;
    std::int32_t rank = 1, size = 3, shares = 0;
    char key[64] = "secret";
  } hello;
  const LocalRendezvousOptions options = options_of("dead", 0, 3);
  const std::string path = rendezvous_directory(scratch()) + "/" + options.name;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  int peer = -1;
  ErrorKind kind = ErrorKind::kInternal;
  std::thread host([&] {
    try {
      local_rendezvous(options, soon(), scratch());
    } catch (const Error& error) {
      peer = error.peer();
      kind = error.kind();
    }
  });
  const auto connect_soon = [&](const Descriptor& caller) {
    while (connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      usleep(1000);
  };
  const Descriptor alive(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const Descriptor dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  connect_soon(alive);
  const pid_t child = fork();
  if (child == 0) {
    connect_soon(dead);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(send(alive.get(), &hello, sizeof hello, MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof hello));
  hello.rank = 2;
  EXPECT_EQ(send(dead.get(), &hello, sizeof hello, MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof hello));
  host.join();
  EXPECT_EQ(kind, ErrorKind::kPeerLost);
  EXPECT_EQ(peer, 2);
}

TEST(LocalRendezvous, TwoOfOneRankAreRefused) {
  std::thread first([] {
    EXPECT_THROW(local_rendezvous(options_of("twice", 1, 3), Deadline::in(seconds(2)), scratch()),
                 Error);
  });
  std::thread second([] {
    EXPECT_THROW(local_rendezvous(options_of("twice", 1, 3), Deadline::in(seconds(2)), scratch()),
                 Error);
  });
  EXPECT_THROW(local_rendezvous(options_of("twice", 0, 3), Deadline::in(seconds(2)), scratch()),
               Error);
  first.join();
  second.join();
}

}  // namespace
}  // namespace shoal::wire
