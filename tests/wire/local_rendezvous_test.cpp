#include "shoal/wire/local_rendezvous.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/wire/arena.h"
#include "tests/error_of.h"
#include "tests/wire/soon.h"

namespace shoal::wire::local_rendezvous_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A deadline for a slow machine.
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

/// What one of three ranks sends first, as local_rendezvous.cpp lays it out.
struct HelloMessage {
  std::uint32_t magic = 0x53484f31;
  std::int32_t rank = 0, size = 3, shares = 0;
  char key[64] = "secret";
};

/// Returns where the leader of a rendezvous listens.
sockaddr_un address_of(const LocalRendezvousOptions& options) {
  const std::string path = rendezvous_directory(scratch()) + "/" + options.name;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  EXPECT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

// A rank whose hello message comes long after its connection is waited for. Connections that never
// send one delay nobody.
TEST(LocalRendezvous, ALateHelloMessageIsRead) {
  HelloMessage hello{.rank = 2};
  const LocalRendezvousOptions options = options_of("late", 0, 3);
  const sockaddr_un address = address_of(options);
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
  HelloMessage hello{.rank = 1};
  const LocalRendezvousOptions options = options_of("dead", 0, 3);
  const sockaddr_un address = address_of(options);
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

// A process with the right key comes as a rank that is not expected: two jobs have one name. Both
// sides say so, and neither waits for its deadline.
TEST(LocalRendezvous, ARankThatIsNotExpectedIsAMistakeOfBothSides) {
  for (const auto& [rank, size] : {std::pair{1, 3}, {2, 3}, {3, 4}}) {
    Error caller(ErrorKind::kInternal, "none", "no error");
    std::thread stranger([&] {
      caller =
          error_of([&] { local_rendezvous(options_of("strange", rank, size), soon(), scratch()); });
    });
    const Error leader =
        error_of([] { local_rendezvous(options_of("strange", 0, 2), soon(), scratch()); });
    stranger.join();
    EXPECT_EQ(leader.kind(), ErrorKind::kUsage) << leader.what();
    EXPECT_EQ(leader.message(), "a process came as rank " + std::to_string(rank) + " of " +
                                    std::to_string(size) + " where 2 are expected");
    EXPECT_EQ(caller.kind(), ErrorKind::kUsage) << caller.what();
    EXPECT_EQ(caller.rank(), rank);
  }
}

// The same of a caller that does not check what it says of itself.
TEST(LocalRendezvous, ARankThatCannotBeIsRefused) {
  for (const std::int32_t rank : {-1, 0, 2, 1 << 30}) {
    struct {
      std::uint32_t magic = 0x53484f31;
      std::int32_t rank = 0, size = 2, shares = 0;
      char key[64] = "secret";
    } hello;
    hello.rank = rank;
    const LocalRendezvousOptions options = options_of("nobody", 0, 2);
    const std::string path = rendezvous_directory(scratch()) + "/" + options.name;
    Error leader(ErrorKind::kInternal, "none", "no error");
    std::thread host(
        [&] { leader = error_of([&] { local_rendezvous(options, soon(), scratch()); }); });
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path.copy(address.sun_path, path.size());
    const Descriptor caller(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    while (connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      std::this_thread::yield();
    EXPECT_EQ(send(caller.get(), &hello, sizeof hello, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof hello));
    host.join();
    EXPECT_EQ(leader.kind(), ErrorKind::kUsage) << rank << " " << leader.what();
    EXPECT_EQ(leader.message().find("here already") != std::string::npos, rank == 0);
  }
}

TEST(LocalRendezvous, WithoutRank0IsATimeoutThatNamesIt) {
  const Error error = error_of([] {
    local_rendezvous(options_of("alone", 1, 2), Deadline::in(milliseconds(20)), scratch());
  });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(error.peer(), 0);
  EXPECT_EQ(error.rank(), 1);
}

TEST(LocalRendezvous, CallsThatMakeNoSenseAreRefused) {
  const auto kind_of = [](const LocalRendezvousOptions& options) {
    return error_of([&] { local_rendezvous(options, soon(), scratch()); }).kind();
  };
  for (const auto& [rank, size] : {std::pair{0, 0}, {-1, 1}, {1, 1}})
    EXPECT_EQ(kind_of(options_of("x", rank, size)), ErrorKind::kUsage) << rank << " " << size;
  LocalRendezvousOptions options = options_of("x", 0, 1);
  for (const std::string& name : {std::string(), std::string("a/b"), std::string(108, 'x')}) {
    options.name = name;
    EXPECT_EQ(kind_of(options), ErrorKind::kUsage) << name;
  }
}

TEST(LocalRendezvous, ASmallerControlSegmentThanExpectedIsRefused) {
  std::thread leader([] {
    LocalRendezvousOptions options = options_of("small", 0, 2);
    options.control_bytes = 4096;
    // It may be done before rank 1 turns away, or fail because of it.
    error_of([&] { local_rendezvous(options, soon(), scratch()); });
  });
  const Error error =
      error_of([] { local_rendezvous(options_of("small", 1, 2), soon(), scratch()); });
  leader.join();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(error.peer(), 0);
}

// A rank that shares no memory is known to share none, and is there all the same.
TEST(LocalRendezvous, SaysWhoSharesMemory) {
  Arena arena({.virtual_bytes = 1 << 20, .limit_bytes = 1 << 20});
  std::vector<LocalRendezvousResult> results(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      LocalRendezvousOptions options = options_of("who", rank, 3);
      if (rank == 1) options.arena = &arena.segment();
      results[static_cast<std::size_t>(rank)] = local_rendezvous(options, soon(), scratch());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const LocalRendezvousResult& all = results[rank];
    EXPECT_EQ(all.shares, (std::vector<bool>{false, true, false}));
    ASSERT_EQ(all.arenas.size(), 3u);
    ASSERT_EQ(all.processes.size(), 3u);
    EXPECT_EQ(all.control.bytes(), std::size_t{1} << 20);
    for (std::size_t peer = 0; peer < 3; ++peer) {
      if (rank != 1) {
        EXPECT_EQ(static_cast<bool>(all.arenas[peer]), peer == 1) << rank << " " << peer;
      }
      EXPECT_EQ(all.processes[peer].get() >= 0, peer != rank) << rank << " " << peer;
    }
  }
  // One segment, which holds the token and nothing else.
  results[0].control.data()[100] = std::byte{9};
  EXPECT_EQ(results[2].control.data()[100], std::byte{9});
  EXPECT_EQ(results[1].control.data()[64], std::byte{0});
}

// A job of this name was killed during its rendezvous.
TEST(LocalRendezvous, ASocketThatWasLeftBehindIsNoObstacle) {
  const LocalRendezvousOptions options = options_of("stale", 0, 1);
  const std::string path = rendezvous_directory(scratch()) + "/" + options.name;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, path.size());
  const Descriptor dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_NO_THROW(local_rendezvous(options, soon(), scratch()));
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "and none is left";
}

TEST(RendezvousDirectory, BelongsToThisUserAlone) {
  std::string base = testing::TempDir() + "rendezvous-XXXXXX";
  ASSERT_NE(mkdtemp(base.data()), nullptr);
  const std::string path = base + "/shoal-" + std::to_string(getuid());
  const auto refused = [&] {
    return error_of([&] { rendezvous_directory(base); }).kind() == ErrorKind::kResource;
  };
  EXPECT_EQ(rendezvous_directory(base), path);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_EQ(rendezvous_directory(base), path) << "once more";
  for (const mode_t mode : {0701, 0710, 0704}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(refused()) << mode;
  }
  ASSERT_EQ(rmdir(path.c_str()), 0);
  ASSERT_EQ(symlink(scratch().c_str(), path.c_str()), 0);
  EXPECT_TRUE(refused()) << "a link to anywhere";
  ASSERT_EQ(unlink(path.c_str()), 0);
  Descriptor(open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_TRUE(refused()) << "a file";
  unlink(path.c_str());
  rmdir(base.c_str());
  EXPECT_TRUE(refused()) << "there is nothing to make it in";
}

}  // namespace
}  // namespace shoal::wire::local_rendezvous_test
