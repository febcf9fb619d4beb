#include "shoal/collective/algorithm/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "shoal/base/check.h"
#include "shoal/collective/algorithm/direct.h"
#include "shoal/collective/algorithm/doubling.h"
#include "shoal/collective/algorithm/hierarchical.h"
#include "shoal/collective/algorithm/ring.h"
#include "shoal/collective/algorithm/tree.h"

namespace shoal::collective {
namespace {

constexpr std::pair<Algorithm, const char*> kNames[] = {
    {Algorithm::kOneShot, "one_shot"},
    {Algorithm::kDirect, "direct"},
    {Algorithm::kRecursiveDoubling, "recursive_doubling"},
    {Algorithm::kHalvingDoubling, "halving_doubling"},
    {Algorithm::kRing, "ring"},
    {Algorithm::kDoubleBinaryTree, "double_binary_tree"},
    {Algorithm::kBinomial, "binomial"},
    {Algorithm::kHierarchical, "hierarchical"},
};

constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kReduce,        Kind::kBroadcast,
                           Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll,
                           Kind::kGather,    Kind::kScatter,       Kind::kBarrier};

StepTable all_reduce_table(Algorithm algorithm, std::size_t count, std::span<const int> hosts,
                           std::span<const int> order) {
  const int ranks = static_cast<int>(hosts.size());
  switch (algorithm) {
    case Algorithm::kOneShot:
      return one_shot_all_reduce(ranks, count);
    case Algorithm::kDirect:
      return direct_all_reduce(ranks, count);
    case Algorithm::kRecursiveDoubling:
      return recursive_doubling_all_reduce(ranks, count);
    case Algorithm::kHalvingDoubling:
      return halving_doubling_all_reduce(ranks, count);
    case Algorithm::kRing:
      return ring_all_reduce(ranks, count, order);
    case Algorithm::kDoubleBinaryTree:
      return double_binary_tree_all_reduce(ranks, count);
    default:
      return hierarchical_all_reduce(hosts, count);
  }
}

}  // namespace

const char* name(Algorithm algorithm) {
  for (const auto& [value, text] : kNames)
    if (value == algorithm) return text;
  return "unknown";
}

std::optional<Algorithm> algorithm(std::string_view name) {
  for (const auto& [value, text] : kNames)
    if (name == text) return value;
  return std::nullopt;
}

std::vector<Algorithm> algorithms_for(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return {Algorithm::kOneShot,         Algorithm::kDirect, Algorithm::kRecursiveDoubling,
              Algorithm::kHalvingDoubling, Algorithm::kRing,   Algorithm::kDoubleBinaryTree,
              Algorithm::kHierarchical};
    case Kind::kBarrier:
      return {Algorithm::kRecursiveDoubling, Algorithm::kOneShot};
    case Kind::kReduce:
    case Kind::kBroadcast:
      return {Algorithm::kDirect, Algorithm::kBinomial};
    case Kind::kAllGather:
    case Kind::kReduceScatter:
      return {Algorithm::kDirect, Algorithm::kRing};
    case Kind::kAllToAll:
    case Kind::kGather:
    case Kind::kScatter:
      return {Algorithm::kDirect};
    default:
      return {};
  }
}

bool folds_once(Algorithm algorithm) {
  return algorithm == Algorithm::kOneShot || algorithm == Algorithm::kDirect;
}

StepTable make_table(Algorithm algorithm, Kind kind, std::size_t count, int root,
                     std::span<const int> hosts, std::span<const int> order) {
  const auto known = algorithms_for(kind);
  SHOAL_USER_CHECK(std::find(known.begin(), known.end(), algorithm) != known.end(), name(kind),
                   "there is no {} {}", name(algorithm), name(kind));
  const int ranks = static_cast<int>(hosts.size());
  const bool direct = algorithm == Algorithm::kDirect;
  switch (kind) {
    case Kind::kAllReduce:
      return all_reduce_table(algorithm, count, hosts, order);
    // Nobody leaves an all-reduce before all have entered it, which is what a barrier promises.
    case Kind::kBarrier:
      return all_reduce_table(algorithm, 1, hosts, order);
    case Kind::kReduce:
      return direct ? direct_reduce(ranks, count, root) : binomial_reduce(ranks, count, root);
    case Kind::kBroadcast:
      return direct ? direct_broadcast(ranks, count, root) : binomial_broadcast(ranks, count, root);
    case Kind::kAllGather:
      return direct ? direct_all_gather(ranks, count) : ring_all_gather(ranks, count, order);
    case Kind::kReduceScatter:
      return direct ? direct_reduce_scatter(ranks, count)
                    : ring_reduce_scatter(ranks, count, order);
    case Kind::kGather:
      return direct_gather(ranks, count, root);
    case Kind::kScatter:
      return direct_scatter(ranks, count, root);
    default:
      return direct_all_to_all(ranks, count);
  }
}

std::vector<Step> make_column(Algorithm algorithm, Kind kind, std::size_t count, int root,
                              std::span<const int> hosts, int rank, int segments,
                              std::span<const int> order) {
  const int ranks = static_cast<int>(hosts.size());
  const auto own = static_cast<std::size_t>(rank);
  SHOAL_USER_CHECK(own < hosts.size(), name(kind), "rank {} of {}", rank, ranks);
  // As in make_table.
  if (kind == Kind::kBarrier) {
    kind = Kind::kAllReduce;
    count = 1;
  }
  const bool direct = algorithm == Algorithm::kDirect;
  const bool ring = algorithm == Algorithm::kRing;
  // For the other algorithms a rank makes the whole table, which has few steps a rank.
  if (kind == Kind::kAllReduce && algorithm == Algorithm::kOneShot)
    return one_shot_all_reduce_column(ranks, count, rank);
  if (kind == Kind::kAllReduce && direct)
    return direct_all_reduce_column(ranks, count, rank, segments);
  if (kind == Kind::kAllReduce && ring) return ring_all_reduce_column(ranks, count, rank, order);
  if (kind == Kind::kAllReduce && algorithm == Algorithm::kRecursiveDoubling)
    return recursive_doubling_all_reduce_column(ranks, count, rank);
  if (kind == Kind::kAllReduce && algorithm == Algorithm::kHalvingDoubling)
    return halving_doubling_all_reduce_column(ranks, count, rank);
  if (kind == Kind::kReduceScatter && direct)
    return direct_reduce_scatter_column(ranks, count, rank);
  if (kind == Kind::kReduceScatter && ring)
    return ring_reduce_scatter_column(ranks, count, rank, order);
  if (kind == Kind::kAllGather && direct) return direct_all_gather_column(ranks, count, rank);
  if (kind == Kind::kAllGather && ring) return ring_all_gather_column(ranks, count, rank, order);
  if (kind == Kind::kAllToAll && direct) {
    const std::vector<std::size_t> counts(hosts.size(), count);
    return exchange_steps(rank, counts, counts);
  }
  return make_table(algorithm, kind, count, root, hosts, order)[own];
}

double predict_ring_seconds(const Route& route, std::size_t bytes) {
  const CostModel links_alone{.inside = {}, .between = {}, .overhead = 0, .fold = 0};
  return predict_seconds(ring_all_reduce(route.links.ranks(), bytes, route.order), 1, links_alone,
                         {}, &route.links);
}

Choice::Choice(std::vector<int> hosts, const CostModel& model, std::string_view overrides,
               std::shared_ptr<const Route> route)
    : hosts_(std::move(hosts)), model_(model), route_(std::move(route)) {
  SHOAL_USER_CHECK(!hosts_.empty(), "choice", "at least one rank is needed");
  SHOAL_USER_CHECK(!route_ || route_->order.size() == hosts_.size(), "choice",
                   "a route of {} ranks for {}", route_ ? route_->order.size() : 0, hosts_.size());
  while (!overrides.empty()) {
    const std::string_view word = overrides.substr(0, overrides.find(','));
    overrides.remove_prefix(std::min(overrides.size(), word.size() + 1));
    const auto equals = word.find('=');
    const auto kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [&](Kind k) { return name(k) == word.substr(0, equals); });
    const auto chosen = equals == word.npos ? std::nullopt : algorithm(word.substr(equals + 1));
    if (kind == std::end(kKinds) || !chosen) {
      throw Error(ErrorKind::kConfig, "choice",
                  fmt::format("'{}' is not an operation and its algorithm", word))
          .hint("write all_reduce=ring");
    }
    const auto known = algorithms_for(*kind);
    if (std::find(known.begin(), known.end(), *chosen) == known.end()) {
      throw Error(ErrorKind::kConfig, "choice",
                  fmt::format("there is no {} {}", name(*chosen), name(*kind)));
    }
    overrides_[*kind] = *chosen;
  }
}

std::optional<Algorithm> Choice::fixed(Kind kind) const {
  const auto found = overrides_.find(kind);
  return found == overrides_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Algorithm> Choice::candidates(Kind kind, bool once) const {
  auto all = algorithms_for(kind);
  const bool one_host =
      std::adjacent_find(hosts_.begin(), hosts_.end(), std::not_equal_to<>()) == hosts_.end();
  // Partial sums would round, divide or scale more than once. On one host the hierarchical table
  // has no second level.
  // Between many hosts it is a direct all-reduce between these, and its table grows with their
  // square.
  const bool flat =
      one_host || std::set<int>(hosts_.begin(), hosts_.end()).size() > kMostSimulatedRanks;
  std::erase_if(all, [&](Algorithm a) {
    return (once && !folds_once(a)) || (flat && a == Algorithm::kHierarchical);
  });
  // An override that adds partial sums does not count where contributions must be folded once.
  if (const auto fixed = overrides_.find(kind);
      fixed != overrides_.end() && (!once || folds_once(fixed->second)))
    return {fixed->second};
  return all;
}

// Whole tables of these algorithms have a number of steps that grows with the square of the ranks:
// of 1,024 ranks 4 million, 130 MB.
bool Choice::predicts_by_one_rank(Algorithm algorithm, Kind kind) const {
  return !route_ && hosts_.size() > kMostSimulatedRanks && !has_root(kind) &&
         (algorithm == Algorithm::kOneShot || algorithm == Algorithm::kDirect ||
          algorithm == Algorithm::kRing);
}

double Choice::predict(Algorithm algorithm, Kind kind, int log2_bytes) const {
  if (predicts_by_one_rank(algorithm, kind)) {
    // With parts of equal size: where there are fewer bytes than ranks, some would have none.
    std::size_t count = kind == Kind::kBarrier ? 1 : std::size_t{1} << log2_bytes;
    if (kind == Kind::kAllReduce && algorithm != Algorithm::kOneShot)
      count = (count + hosts_.size() - 1) / hosts_.size() * hosts_.size();
    const auto column = make_column(algorithm, kind, count, 0, hosts_, 0);
    return predict_seconds_of_equals(column, static_cast<int>(hosts_.size()), 1, model_, hosts_);
  }
  // A byte is an element here: Buffer::count of any type comes to the same number of bytes.
  return predict_seconds(
      make_table(algorithm, kind, std::size_t{1} << log2_bytes, 0, hosts_, order()), 1, model_,
      hosts_, route_ ? &route_->links : nullptr);
}

Algorithm Choice::operator()(Kind kind, std::size_t bytes, bool once) const {
  // All ranks compute this from equal numbers and so choose alike without a message. Sizes count up
  // to the next power of two, which keeps the simulations few.
  const int log2_bytes = bytes <= 1 ? 0 : static_cast<int>(std::bit_width(bytes - 1));
  const auto [entry, fresh] = known_.try_emplace({kind, log2_bytes, once}, Algorithm::kDirect);
  if (!fresh) return entry->second;
  const auto all = candidates(kind, once);
  SHOAL_CHECK(!all.empty(), "no algorithm for {}", name(kind));
  double best = 0;
  for (std::size_t i = 0; i < all.size() && all.size() > 1; ++i) {
    // Of equal times the first in the list wins, on every rank the same.
    if (const double seconds = predict(all[i], kind, log2_bytes); i == 0 || seconds < best) {
      best = seconds;
      entry->second = all[i];
    }
  }
  if (all.size() == 1) entry->second = all.front();
  return entry->second;
}

std::string Choice::print() const {
  std::string text = fmt::format(
      "{} ranks; bytes are those of one rank's count; times in us, as predicted\n", hosts_.size());
  for (const Kind kind : kKinds) {
    for (int log2_bytes = 2; log2_bytes <= (kind == Kind::kBarrier ? 2 : 28); log2_bytes += 2) {
      text += fmt::format("{:<14} {:>10}  {:<18}", name(kind), std::size_t{1} << log2_bytes,
                          name((*this)(kind, std::size_t{1} << log2_bytes)));
      for (const Algorithm a : algorithms_for(kind))
        text += fmt::format("  {} {:.0f}", name(a), 1e6 * predict(a, kind, log2_bytes));
      text += '\n';
    }
  }
  return text;
}

}  // namespace shoal::collective
