#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/collective/algorithm/cost_model.h"
#include "shoal/collective/algorithm/step.h"
#include "shoal/collective/operation.h"
#include "shoal/collective/route/route.h"

namespace shoal::collective {

enum class Algorithm : std::uint8_t {
  kOneShot,
  kDirect,
  kRecursiveDoubling,
  kHalvingDoubling,
  kRing,
  kDoubleBinaryTree,
  kBinomial,
  kHierarchical,
};

const char* name(Algorithm algorithm);  ///< "one_shot", "ring" ...
std::optional<Algorithm> algorithm(std::string_view name);

/// Returns the algorithms that a kind has; none for send and receive.
std::vector<Algorithm> algorithms_for(Kind kind);

/// Returns true when contributions are folded once, in the order of ranks. Such algorithms all give
/// the same bits, those of a plain loop, and types narrower than fp32 round once. The others add
/// partial sums; all ranks still end with the same bits.
bool folds_once(Algorithm algorithm);

/// Makes the table of `algorithm` for `kind`, `hosts.size()` ranks and `count` as in Buffer. A
/// barrier is an all-reduce of one element. `order` is that of a ring; other tables know nothing of
/// it. Throws Error(usage) when the kind has no such algorithm.
StepTable make_table(Algorithm algorithm, Kind kind, std::size_t count, int root,
                     std::span<const int> hosts, std::span<const int> order = {});
/// Returns one rank's column of that table, without making the others where these are many.
/// `segments`: as in direct_all_reduce_column; other tables know nothing of it.
std::vector<Step> make_column(Algorithm algorithm, Kind kind, std::size_t count, int root,
                              std::span<const int> hosts, int rank, int segments = 1,
                              std::span<const int> order = {});

/// Predicts the seconds of a ring all-reduce of `bytes` whose ranks begin at the same time: what
/// the messages take on their links, and nothing for what the ranks do.
double predict_ring_seconds(const Route& route, std::size_t bytes);

/// Picks algorithms by predicted time. Every rank must pass the same arguments: the algorithm is
/// part of the call that ranks compare.
class Choice {
 public:
  /// A group of more ranks than these is too large to simulate: one rank stands for all in
  /// algorithms in which all do the same.
  static constexpr std::size_t kMostSimulatedRanks = 64;
  /// `overrides`: "all_reduce=ring,broadcast=direct"; empty: none. They hold for every size. An
  /// overridden all_reduce, reduce or reduce_scatter of a type narrower than fp32, or of kAverage
  /// or kPremulSum, keeps to the algorithms that fold once. Throws Error(config) for unknown
  /// kinds and algorithms.
  /// `route`: what was measured between the ranks; null: links cost what the model says, and a ring
  /// goes in the order of ranks.
  Choice(std::vector<int> hosts, const CostModel& model, std::string_view overrides = {},
         std::shared_ptr<const Route> route = nullptr);

  /// Returns the algorithm that is predicted to be the fastest for `bytes` of Buffer::count,
  /// rounded up to a power of two. With `once` it chooses among those that fold once.
  Algorithm operator()(Kind kind, std::size_t bytes, bool once = false) const;

  /// Returns a line for each kind and power of two with the choice and what each algorithm is
  /// predicted to take, in microseconds.
  std::string print() const;

  /// Returns the algorithm that the overrides set for a kind.
  std::optional<Algorithm> fixed(Kind kind) const;
  const std::vector<int>& hosts() const { return hosts_; }
  const CostModel& costs() const { return model_; }
  /// Returns the way of this group, null where it goes in the order of ranks.
  const std::shared_ptr<const Route>& route() const { return route_; }
  /// Returns the order of a ring; empty: that of ranks.
  std::span<const int> order() const {
    return route_ ? std::span<const int>(route_->order) : std::span<const int>();
  }

 private:
  std::vector<Algorithm> candidates(Kind kind, bool once) const;
  bool predicts_by_one_rank(Algorithm algorithm, Kind kind) const;
  double predict(Algorithm algorithm, Kind kind, int log2_bytes) const;

  std::vector<int> hosts_;
  CostModel model_;
  std::shared_ptr<const Route> route_;
  std::map<Kind, Algorithm> overrides_;
  mutable std::map<std::tuple<Kind, int, bool>, Algorithm> known_;  // by kind, log2 of bytes, once
};

}  // namespace shoal::collective
