#include "shoal/forecast/gradient_exchange.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "shoal/forecast/rank_states.h"
#include "shoal/forecast/unit_times.h"

namespace shoal::forecast {
namespace {

/// Ranks that hold the same part of a parameter, and those among them that have shards of it.
struct Holders {
  double all = 1;
  double shards = 1;

  auto operator<=>(const Holders&) const = default;
};

/// A parameter of one rank.
struct Held {
  int unit = 0;
  Holders holders;
  double elements = 0;
};

class HeldByRank {
 public:
  HeldByRank(const ModelSpec& spec, const Training& training)
      : spec_(spec), training_(training), blocks_(plan::stage_blocks(spec, training)) {}

  std::vector<Held> of(std::int64_t rank) const {
    std::vector<Held> list;
    for (const model::ParameterSpec& parameter : model::parameters(spec_)) {
      if (!parameter.trained) continue;
      const std::int64_t stage = stage_of(parameter.unit);
      const bool tied = spec_.tied_embeddings && parameter.name == "embedding.tokens.weight";
      const std::int64_t last = training_.stages() - 1;
      if (rank_of(stage) == rank || (tied && rank_of(last) == rank))
        list.push_back(held(parameter));
    }
    return list;
  }

 private:
  std::int64_t rank_of(std::int64_t stage) const { return plan::rank_of_stage(training_, stage); }
  std::int64_t stage_of(int unit) const {
    if (unit == 0) return 0;
    std::int64_t end = 0;
    for (std::size_t stage = 0; stage < blocks_.size(); ++stage) {
      end += blocks_[stage];
      if (unit <= end) return static_cast<std::int64_t>(stage);
    }
    return training_.stages() - 1;
  }

  Held held(const model::ParameterSpec& parameter) const {
    const Degrees degrees = training_.reducing();
    const plan::HeldParameters part = plan::held_of(parameter, training_);
    const auto copies = static_cast<double>(degrees.dp() * degrees.cp);
    const auto shards = static_cast<double>(degrees.shard_ranks());
    const auto tensor = static_cast<double>(degrees.tp);
    Held result{parameter.unit, {}, part.all()};
    if (part.split > 0) {
      result.holders = {copies, shards};
    } else if (part.replicated > 0 || degrees.ep == 1) {
      // Undivided experts lie as vectors do.
      result.holders = {copies * tensor, shards * tensor};
    } else {
      const auto experts = static_cast<double>(training_.expert_data());
      result.holders = {experts, experts};
    }
    return result;
  }

  const ModelSpec& spec_;
  const Training& training_;
  std::vector<std::int64_t> blocks_;
};

}  // namespace

double gradient_exchange(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                         std::int64_t rank) {
  // Tensors of one size take one time.
  std::map<std::pair<double, bool>, double> known;
  const auto timed = [&](const char* name, bool scattered, double elements) {
    const auto [place, fresh] = known.try_emplace({elements, scattered}, 0);
    if (fresh) place->second = kernel_seconds(cluster, name, plan::memory_work(elements));
    return place->second;
  };
  double seconds = 0;
  std::map<std::pair<int, Holders>, double> units;
  for (const Held& held : HeldByRank(spec, training).of(rank)) {
    if (held.holders.all == 1) continue;
    if (training.zero_stage == 0) {
      seconds += timed("all_reduce", false, held.elements);
    } else {
      units[{held.unit, held.holders}] += held.elements;
    }
  }
  const double times =
      training.reduces_every_micro_batch() ? static_cast<double>(training.micro_batches()) : 1;
  for (const auto& [unit, elements] : units) {
    const Holders& holders = unit.second;
    if (holders.shards > 1) seconds += times * timed("reduce_scatter", true, elements);
    // Hybrid sharding: what a rank owns of each sum is summed over the replicas.
    if (holders.all > holders.shards)
      seconds += times * timed("all_reduce", false, elements / holders.shards);
  }
  return seconds;
}

double member_exchange(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  if (!training.exchange || training.exchange->overlapped) return 0;
  const StateShares shares(training, cluster);
  double seconds = 0;
  for (const plan::HeldParameters& held : plan::held_by_rank(spec, training)) {
    // Differences are fp32 in memory, however few bytes travel.
    seconds = std::max(
        seconds, kernel_seconds(cluster, "all_reduce", plan::memory_work(shares.owned(held))));
  }
  return seconds / static_cast<double>(training.exchange->every);
}

double tied_exchange(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  const Degrees& degrees = training.degrees;
  const bool apart = degrees.pp > 1 && plan::rank_of_stage(training, 0) !=
                                           plan::rank_of_stage(training, training.stages() - 1);
  if (!spec.tied_embeddings || !apart) return 0;
  // Each rank sums its own shard. Of a table that every rank along tp has, these cut it too.
  const double shards = training.zero_stage > 0 ? static_cast<double>(degrees.shard_ranks()) : 1;
  const bool cut = training.tokens_cut() || training.zero_stage > 0;
  const double parts = cut ? static_cast<double>(degrees.tp) : 1;
  const double elements = static_cast<double>(spec.vocab * spec.hidden) / parts / shards;
  return kernel_seconds(cluster, "all_reduce", plan::memory_work(elements));
}

}  // namespace shoal::forecast
