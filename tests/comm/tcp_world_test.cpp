// Groups over TCP: ranks as processes that meet at a file and at a port, with plain sums as the reference.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "shoal/collective/hierarchical_communicator.h"
#include "shoal/comm/host_engine.h"
#include "shoal/comm/world.h"
#include "shoal/wire/address.h"
#include "shoal/wire/local_rendezvous.h"
#include "tests/comm/rank_processes.h"

namespace shoal::comm {
namespace {

bool no_memory_is_shared(const Group& group) { return !group.shared_buffer(64) && !group.visible_to_peers(at::empty({4})); }

bool everything(const Group& group) {
  const int ranks = group.size(), rank = group.rank();
  bool good = true;
  for (const std::int64_t count : {1, 7, 100003}) {
    const at::Tensor base = at::arange(count, at::kLong).remainder(13).to(at::kFloat);
    at::Tensor sum = base + rank;
    group.all_reduce(sum);
    good = good && sum.equal(base * ranks + ranks * (ranks - 1) / 2);

    const at::Tensor gathered = at::empty({ranks, count});
    group.all_gather(gathered, base + rank);
    for (int r = 0; r < ranks; ++r) good = good && gathered[r].equal(base + r);

    const at::Tensor part = at::empty({count});
    group.reduce_scatter(part, gathered);
    good = good && part.equal((base + rank) * ranks);

    const at::Tensor exchanged = at::empty({ranks, count});
    group.all_to_all(exchanged, gathered + 100 * rank);
    for (int r = 0; r < ranks; ++r) good = good && exchanged[r].equal(base + rank + 100 * r);

    const at::Tensor told = at::full({count}, rank);
    group.broadcast(told, ranks - 1);
    good = good && told.eq(ranks - 1).all().item<bool>();
  }
  // Around a ring, then in the halves of the world.
  const at::Tensor mine = at::full({5}, rank), theirs = at::empty({5}, at::kLong);
  Work sent = group.send(mine.to(at::kLong), (rank + 1) % ranks, 3, {.async = true});
  group.recv(theirs, (rank + ranks - 1) % ranks, 3);
  sent.order();
  good = good && theirs.eq((rank + ranks - 1) % ranks).all().item<bool>();
  const Group half = group.split(rank % 2, 0);
  at::Tensor ones = at::full({9}, 1.0);
  half.all_reduce(ones);
  return good && ones.eq(half.size()).all().item<bool>() && half.size() == (ranks + 1 - rank % 2) / 2;
}

TEST(TcpWorld, CollectivesAmongProcessesThatMeetAtAFile) {
  const auto check = [](const Group& group) { return no_memory_is_shared(group) && everything(group); };
  EXPECT_TRUE(on_processes(2, "", check));
  EXPECT_TRUE(on_processes(4, "", check));
}

// What names the meeting is gone as soon as all are there: whoever is killed after that leaves nothing behind.
TEST(TcpWorld, NothingIsLeftOfAMeetingAtAFile) {
  const std::string left = fmt::format("{}/shoal-test-{}.store", wire::meeting_directory(), ::getpid());
  EXPECT_TRUE(on_processes(3, "", [&](const Group& group) {
    group.barrier();
    return ::access(left.c_str(), F_OK) != 0;
  }));
}

// What ranks on several hosts get when nobody says otherwise: shared memory where a token shows that there is some, TCP between.
TEST(TcpWorld, HostsShareMemoryInsideAndSpeakTcpBetween) {
  for (const int hosts : {2, 4})
    EXPECT_TRUE(on_processes(
        4, at_a_file(),
        [&](const Group& group) {
          bool good = no_memory_is_shared(group) && everything(group);
          const auto* engine = dynamic_cast<const CommunicatorEngine*>(group.engine().get());
          const bool mixed = engine && dynamic_cast<const collective::HierarchicalCommunicator*>(engine->communicator().get());
          good = good && mixed == (hosts == 2);
          const Group host = group.split(group.rank() / 2, 0);
          const at::Tensor large = at::full({5000}, group.rank());
          good = good && host.visible_to_peers(large) == (hosts == 2) && (host.shared_buffer(4096) != nullptr) == (hosts == 2);
          host.all_reduce(large);
          return good && large.eq(4 * (group.rank() / 2) + 1).all().item<bool>() && everything(host);
        },
        hosts));
}

TEST(TcpWorld, RanksThatTurnOutToShareOneHostNeedNoTcp) {
  EXPECT_TRUE(on_processes(
      3, at_a_file(), [](const Group& group) { return dynamic_cast<const HostEngine*>(group.engine().get()) != nullptr && everything(group); }, 1));
}

// One of four ranks on two hosts is killed in the middle: the others stop within seconds and name it.
TEST(TcpWorld, ARankThatIsKilledIsNamedOnAllHosts) {
  EXPECT_TRUE(on_processes(4, at_a_file(),
                           [](const Group& group) -> bool {
                             const at::Tensor x = at::full({100000}, 1.0f);
                             const auto before = Clock::now();
                             try {
                               for (int i = 0;; ++i) {
                                 if (i == 3 && group.rank() == 2) ::kill(::getpid(), SIGKILL);
                                 group.all_reduce(x);
                               }
                             } catch (const Error& error) {
                               const bool named =
                                   error.kind() == ErrorKind::kPeerLost && error.peer() == 2 && Clock::now() - before < std::chrono::seconds(10);
                               if (!named) std::fprintf(stderr, "rank %d: %s\n", group.rank(), error.what());
                               ::_exit(named ? 7 : 8);
                             }
                           },
                           2, {7, 7, -1, 7}));
}

// The port named is taken by something that is no store, as under torchrun: the ranks find each other one port above.
TEST(TcpWorld, RanksMeetBesideWhateverElseListens) {
  const wire::Descriptor stranger = wire::listen_on("127.0.0.1", {20000, 30000});
  const auto port = wire::local_endpoint(stranger.get()).port;
  EXPECT_TRUE(on_processes(3, fmt::format("127.0.0.1:{}", port), everything));
}

TEST(TcpWorld, ARankThatFailsIsNamedOnAll) {
  EXPECT_TRUE(on_processes(3, "", [](const Group& group) {
    if (group.rank() == 1) group.abort(Error(ErrorKind::kData, "read", "the shard is truncated").at(1, 3));
    try {
      group.barrier();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kData && error.rank() == 1 && error.message() == "the shard is truncated";
    }
    return false;
  }));
}

}  // namespace
}  // namespace shoal::comm
