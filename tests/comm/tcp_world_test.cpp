// Groups over TCP: ranks as processes that meet at a file and at a port, with plain sums as the
// reference.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "shoal/collective/hierarchy/hierarchical_communicator.h"
#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/comm/world.h"
#include "shoal/wire/address.h"
#include "shoal/wire/local_rendezvous.h"
#include "tests/comm/group_checks.h"
#include "tests/comm/rank_processes.h"

namespace shoal::comm::tcp_world_test {
namespace {

bool no_memory_is_shared(const Group& group) {
  return !group.shared_buffer(64) && !group.visible_to_peers(at::empty({4}));
}

bool everything(const Group& group) {
  const auto wrong = check_calls(group);
  for (const std::string& line : wrong) std::fprintf(stderr, "%s\n", line.c_str());
  return wrong.empty();
}

bool every_type(const Group& group) {
  const auto wrong = check_types(group);
  for (const std::string& line : wrong) std::fprintf(stderr, "%s\n", line.c_str());
  return wrong.empty();
}

TEST(TcpWorld, CollectivesAmongProcessesThatMeetAtAFile) {
  const auto check = [](const Group& group) {
    return no_memory_is_shared(group) && everything(group);
  };
  EXPECT_TRUE(on_processes(2, "", check));
  EXPECT_TRUE(on_processes(4, "", check));
}

TEST(TcpWorld, EveryOperationTypeAndReduction) {
  EXPECT_TRUE(on_processes(3, "", every_type));
  EXPECT_TRUE(on_processes(4, at_a_file(), every_type, 2));
}

// What names the meeting is gone as soon as all are there: whoever is killed after that leaves
// nothing behind.
TEST(TcpWorld, NothingIsLeftOfAMeetingAtAFile) {
  const std::string left =
      fmt::format("{}/shoal-test-{}.store", wire::rendezvous_directory(), ::getpid());
  EXPECT_TRUE(on_processes(3, "", [&](const Group& group) {
    group.barrier();
    return ::access(left.c_str(), F_OK) != 0;
  }));
}

// What ranks on several hosts get when nobody says otherwise: shared memory where a token shows
// that there is some, TCP between.
TEST(TcpWorld, HostsShareMemoryInsideAndSpeakTcpBetween) {
  for (const int hosts : {2, 4}) {
    EXPECT_TRUE(on_processes(
        4, at_a_file(),
        [&](const Group& group) {
          bool good = no_memory_is_shared(group) && everything(group);
          const bool mixed =
              dynamic_cast<const collective::HierarchicalCommunicator*>(group.communicator());
          good = good && mixed == (hosts == 2);
          const Group host = group.split(group.rank() / 2, 0);
          const at::Tensor large = at::full({5000}, group.rank());
          good = good && host.visible_to_peers(large) == (hosts == 2) &&
                 (host.shared_buffer(4096) != nullptr) == (hosts == 2);
          host.all_reduce(large);
          return good && large.eq(4 * (group.rank() / 2) + 1).all().item<bool>() &&
                 everything(host);
        },
        hosts));
  }
}

/// Lends parts of several sizes, and compares what all have lent.
bool lends(const Group& group, bool in_place) {
  const auto part_of = [](int rank) { return at::arange(3000 + 7 * rank, at::kFloat).add(rank); };
  bool good = true;
  for (int i = 0; i < 3; ++i) {
    const Lent lent = group.lend(part_of(group.rank()));
    good = good && lent.in_place() == in_place;
    for (int r = 0; r < group.size(); ++r) good = good && lent.part(r).equal(part_of(r));
  }
  return good;
}

// Processes read in place what lies in their arenas. Over TCP, and in a group of two hosts of which
// each shares memory, all copy.
TEST(TcpWorld, RanksLendInPlaceWhereAllShareMemory) {
  EXPECT_TRUE(on_processes(3, "", [](const Group& group) { return lends(group, false); }));
  for (const int hosts : {1, 2}) {
    EXPECT_TRUE(on_processes(
        4, at_a_file(),
        [&](const Group& group) {
          // With one host rank_processes.h leaves out the arena.
          return lends(group, false) && lends(group.split(group.rank() / 2, 0), hosts == 2);
        },
        hosts));
  }
}

TEST(TcpWorld, RanksThatTurnOutToShareOneHostNeedNoTcp) {
  EXPECT_TRUE(on_processes(
      3, at_a_file(),
      [](const Group& group) {
        return dynamic_cast<const collective::HostCommunicator*>(group.communicator()) != nullptr &&
               everything(group);
      },
      1));
}

// One of four ranks on two hosts is killed in the middle: the others see it end, well before it
// would count as silent, and name it.
TEST(TcpWorld, ARankThatIsKilledIsNamedOnAllHosts) {
  EXPECT_TRUE(on_processes(4, at_a_file(),
                           [](const Group& group) -> bool {
                             const at::Tensor x = at::full({100000}, 1.0f);
                             try {
                               for (int i = 0;; ++i) {
                                 if (i == 3 && group.rank() == 2) ::kill(::getpid(), SIGKILL);
                                 group.all_reduce(x);
                               }
                             } catch (const Error& error) {
                               const bool named =
                                   error.kind() == ErrorKind::kPeerLost && error.peer() == 2 &&
                                   std::string(error.what()).find("silent") == std::string::npos;
                               if (!named)
                                 std::fprintf(stderr, "rank %d: %s\n", group.rank(), error.what());
                               ::_exit(named ? 7 : 8);
                             }
                           },
                           2, {7, 7, -1, 7}));
}

// Ranks that were given different costs would choose different algorithms: what rank 0 has counts
// for all.
TEST(TcpWorld, AlgorithmsAreChosenByTheCostsOfRank0) {
  const auto costs_of = [](int rank) {
    const double own = rank + 1;
    return collective::CostModel{.inside = {1e-6 * own, 1 / (3e9 * own)},
                                 .between = {1e-5 / own, own / 7e9},
                                 .overhead = 2e-6 / own,
                                 .fold = own / 9e9};
  };
  const auto good = [&](const Group& group) {
    const auto* tcp = dynamic_cast<const collective::TcpCommunicator*>(group.communicator());
    return tcp && tcp->choice().costs() == costs_of(0) && everything(group);
  };
  EXPECT_TRUE(on_processes(3, "", good, 0, {}, costs_of));
}

// The port named is taken by something that is no store, as under torchrun: the ranks find each
// other one port above.
TEST(TcpWorld, RanksMeetBesideWhateverElseListens) {
  const wire::Descriptor stranger = wire::listen_on("127.0.0.1", {20000, 30000});
  const auto port = wire::local_endpoint(stranger.get()).port;
  EXPECT_TRUE(on_processes(3, fmt::format("127.0.0.1:{}", port), everything));
}

TEST(TcpWorld, ARankThatFailsIsNamedOnAll) {
  EXPECT_TRUE(on_processes(3, "", [](const Group& group) {
    try {
      // Afterwards all are connected: a rank that still connects would hear of the failure there.
      group.barrier();
      if (group.rank() == 1)
        group.abort(Error(ErrorKind::kData, "read", "the shard is truncated").at(1, 3));
      group.barrier();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kData && error.rank() == 1 &&
             error.message() == "the shard is truncated";
    }
    return false;
  }));
}

}  // namespace
}  // namespace shoal::comm::tcp_world_test
