#include "shoal/collective/route/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/hash.h"
#include "shoal/collective/route/link_probe.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/rail_count.h"

namespace shoal::collective {
namespace {

using std::chrono::milliseconds;

/// Numbers that no other group has: those that are drawn or made of their parent's have bit 1 set.
constexpr std::uint64_t kProposals = 4;
constexpr std::uint64_t kProbes = 8;
constexpr std::uint64_t kResults = 12;
/// How long a rank sends to another, where there is time: so long, or so many round trips.
constexpr Duration kLeastTime = milliseconds(400);
constexpr int kRoundTrips = 8;
/// All rounds together send for no longer than this, and one of them for no longer than that.
constexpr Duration kAllRounds = milliseconds(2000);
constexpr Duration kLongestRound = milliseconds(1000);

/// Bytes that no link on the way can pack.
std::vector<std::byte> random_payload(int rank) {
  std::vector<std::byte> bytes(LinkProbe::kMessageBytes);
  std::uint64_t state = splitmix64(static_cast<std::uint64_t>(rank));
  for (std::byte& byte : bytes) {
    state = splitmix64(state);
    byte = static_cast<std::byte>(state);
  }
  return bytes;
}

/// Returns a group of all ranks beside those in which they work.
std::unique_ptr<TcpCommunicator> group_of_all(const std::shared_ptr<wire::Transport>& transport,
                                              std::uint64_t number) {
  std::vector<int> all(static_cast<std::size_t>(transport->size()));
  std::iota(all.begin(), all.end(), 0);
  return TcpCommunicator::of_members(transport, {}, all, number);
}

/// A rank tells this to the others before anything is measured.
struct Proposal {
  std::uint8_t mode = 0;
  std::uint8_t has_far_peers = 0;
};

/// Makes one matrix of what each rank has measured of the ways to itself.
LinkMatrix gather(const std::shared_ptr<wire::Transport>& transport,
                  const std::vector<LinkSpeed>& own, Deadline deadline) {
  const int ranks = transport->size();
  const auto group = group_of_all(transport, kResults);
  std::vector<LinkSpeed> columns(own.size() * own.size());
  group->run({.kind = Kind::kAllGather,
              .type = ElementType::kU8,
              .buffer = {own.data(), columns.data(), own.size() * sizeof(LinkSpeed)}},
             deadline);
  LinkMatrix links(ranks, {.kbit_s = LinkMatrix::kLeastKbit});
  for (int to = 0; to < ranks; ++to) {
    for (int from = 0; from < ranks; ++from) {
      const auto index = static_cast<std::size_t>(to) * own.size() + static_cast<std::size_t>(from);
      if (from != to) links.set(from, to, columns[index]);
    }
  }
  return links;
}

}  // namespace

int rounds_of_probes(int ranks) { return ranks < 2 ? 0 : ranks - ranks % 2; }

// In the round of shift k every rank sends to the one that is k behind it. Half way round the two
// would send to each other: they do so one after the other, in the last two rounds.
ProbePeers peers_in_round(int ranks, int rank, int round) {
  const int half = ranks % 2 == 0 ? ranks / 2 : 0;
  if (half > 0 && round >= ranks - 2) {
    const int peer = (rank + half) % ranks;
    const bool sends = (rank < peer) == (round == ranks - 2);
    return sends ? ProbePeers{.to = peer} : ProbePeers{.from = peer};
  }
  const int shift = half > 0 && round + 1 >= half ? round + 2 : round + 1;
  return {.to = (rank + shift) % ranks, .from = (rank - shift + ranks) % ranks};
}

bool is_far(const wire::Transport& transport, int peer) {
  return transport.rails(peer) > 1 || wire::rails_for(transport.round_trip(peer), 2) > 1;
}

LinkMatrix measure_links(const std::shared_ptr<wire::Transport>& transport, Deadline deadline) {
  const int ranks = transport->size();
  const int rounds = rounds_of_probes(ranks);
  std::vector<LinkSpeed> own(static_cast<std::size_t>(ranks));
  const auto payload = random_payload(transport->rank());
  const Duration most = std::min<Duration>(kAllRounds / std::max(rounds, 1), kLongestRound);
  for (int round = 0; round < rounds; ++round) {
    const auto [to, from] = peers_in_round(ranks, transport->rank(), round);
    const Duration wanted =
        to < 0 ? kLeastTime
               : std::max<Duration>(kLeastTime, kRoundTrips * transport->round_trip(to));
    LinkProbe probe(*transport, to, from,
                    {.group = kProbes,
                     .number = static_cast<std::uint64_t>(round),
                     .sends_for = std::min(wanted, most)},
                    payload);
    const LinkSpeed speed = probe.run(deadline);
    if (from >= 0) own[static_cast<std::size_t>(from)] = speed;
  }
  return gather(transport, own, deadline);
}

std::optional<LinkMatrix> measure_where_far(const std::shared_ptr<wire::Transport>& transport,
                                            RouteMode mode, Deadline deadline) {
  const int ranks = transport->size();
  Proposal own{.mode = static_cast<std::uint8_t>(mode)};
  for (int peer = 0; peer < ranks; ++peer)
    if (peer != transport->rank() && is_far(*transport, peer)) own.has_far_peers = 1;
  std::vector<Proposal> all(static_cast<std::size_t>(ranks));
  const auto group = group_of_all(transport, kProposals);
  group->run({.kind = Kind::kAllGather,
              .type = ElementType::kU8,
              .buffer = {&own, all.data(), sizeof own}},
             deadline);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].mode == own.mode) continue;
    throw Error(ErrorKind::kUsage, "measure links",
                fmt::format("rank {} has routes {}, this rank has routes {}", r,
                            name(static_cast<RouteMode>(all[r].mode)), name(mode)))
        .at(transport->rank(), ranks)
        .from(static_cast<int>(r))
        .hint("give all ranks the same parallelism.routes (SHOAL_ROUTES under PyTorch)");
  }
  const bool far =
      std::any_of(all.begin(), all.end(), [](const Proposal& p) { return p.has_far_peers != 0; });
  if (!far || mode == RouteMode::kNatural || ranks > kMostMeasuredRanks) return std::nullopt;
  return measure_links(transport, deadline);
}

}  // namespace shoal::collective
