// Groups over TCP: ranks as processes that meet at a file and at a port, with plain sums as the reference.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

#include "shoal/comm/world.h"
#include "shoal/wire/address.h"

namespace shoal::comm {
namespace {

/// Runs `body` on `ranks` child processes over TCP; true when each returned true.
bool on_processes(int ranks, const std::string& rendezvous, const std::function<bool(const Group&)>& body) {
  const std::string name = fmt::format("tcp-world-test-{}", ::getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    bool good = false;
    try {
      const Group group = connect({.name = name,
                                   .key = name,
                                   .rank = rank,
                                   .size = ranks,
                                   .transport = rendezvous.empty() ? Transport::kTcp : Transport::kAutomatic,
                                   .rendezvous = rendezvous,
                                   .timeout = std::chrono::seconds(60)});
      good = body(group);
      group.barrier();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    ::_exit(good ? 0 : 1);
  }
  bool all = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    all = all && status == 0;
  }
  return all;
}

bool everything(const Group& group) {
  const int ranks = group.size(), rank = group.rank();
  bool good = !group.shared_buffer(64) && !group.visible_to_peers(at::empty({4}));
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
  EXPECT_TRUE(on_processes(2, "", everything));
  EXPECT_TRUE(on_processes(4, "", everything));
}

// The port named is taken by something that is no store, as under torchrun: the ranks find each other one port above.
TEST(TcpWorld, RanksMeetBesideWhateverElseListens) {
  const wire::Descriptor stranger = wire::listen_on("127.0.0.1", {0, 0});
  const auto port = wire::local_endpoint(stranger.get()).port;
  if (port > 65500) GTEST_SKIP() << "no ports above " << port;
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
