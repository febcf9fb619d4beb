#include "shoal/plan/turning_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "shoal/base/error.h"
#include "shoal/plan/plan.h"

namespace shoal::plan {
namespace {

/// Bisections of a factor of two: the turn is found to within 2^(1/16).
constexpr int kHalvings = 4;

bool same_mesh(const Candidate& a, const Candidate& b) {
  const Degrees& x = a.training.degrees;
  const Degrees& y = b.training.degrees;
  return x.dp() == y.dp() && x.tp == y.tp && x.pp == y.pp && x.cp == y.cp && x.ep == y.ep;
}

using Winner = std::optional<Candidate>;

/// Every strategy that the space allows, priced on the cluster as it is.
class Strategies {
 public:
  Strategies(const Estimator& estimator, const ModelSpec& spec, const Training& start,
             const Cluster& cluster, const SearchSpace& space, double share)
      : estimator_(estimator),
        spec_(spec),
        cluster_(cluster),
        micro_batches_(space.micro_batch.begin(), space.micro_batch.end()),
        share_(share) {
    // Priced without a limit on memory and with every micro-batch, as both are asked about below.
    SearchSpace any = space;
    any.micro_batch.clear();
    strategies_ = every_strategy(estimator, spec, start, cluster, any, cache_);
  }

  Winner with_memory(double bytes) const {
    return fastest([&](const Candidate& strategy) {
      return allowed(strategy) && strategy.peak_bytes <= bytes * share_;
    });
  }
  Winner with_micro_batch(std::int64_t samples) const {
    return fastest([&](const Candidate& strategy) {
      return strategy.training.micro_batch == samples && fits(strategy);
    });
  }
  std::set<std::int64_t> micro_batches() const {
    std::set<std::int64_t> all;
    for (const Candidate& strategy : strategies_) all.insert(strategy.training.micro_batch);
    return all;
  }

  /// Returns the fastest strategy with another bandwidth of one link. A strategy is no faster on
  /// slower links than now, and no faster on faster links than on nearly infinite ones. Strategies
  /// are tried in the order of that bound until it passes the best.
  Winner with_link(Link Cluster::*link, double bandwidth) {
    Cluster changed = cluster_;
    (changed.*link).bandwidth = bandwidth;
    Winner best;
    for (const auto& [bound, strategy] : bounds(link, bandwidth > (cluster_.*link).bandwidth)) {
      // The list ascends by a lower bound of the time: no later strategy can win.
      if (best && bound >= best->time.all()) break;
      const StepTime time = estimator_.step_time(spec_, strategy->training, changed, cache_,
                                                 best ? best->time.all() : INFINITY);
      if (!best || time.all() < best->time.all()) best = *strategy, best->time = time;
    }
    return best;
  }

 private:
  using Bounds = std::vector<std::pair<double, const Candidate*>>;

  bool allowed(const Candidate& strategy) const {
    return micro_batches_.empty() || micro_batches_.contains(strategy.training.micro_batch);
  }
  bool fits(const Candidate& strategy) const {
    return strategy.peak_bytes <= cluster_.device.memory_bytes * share_;
  }

  template <class Takes>
  Winner fastest(Takes takes) const {
    const Candidate* best = nullptr;
    for (const Candidate& strategy : strategies_)
      if (takes(strategy) && (!best || strategy.time.all() < best->time.all())) best = &strategy;
    return best ? Winner(*best) : std::nullopt;
  }

  const Bounds& bounds(Link Cluster::*link, bool faster) {
    Bounds& known = bounds_[link == &Cluster::inside][faster];
    if (!known.empty()) return known;
    Cluster ideal = cluster_;
    // Slower links: the time as it is now is a bound. Faster ones: the time over a link that costs
    // nearly nothing.
    if (faster) (ideal.*link).bandwidth *= 1e6;
    for (const Candidate& strategy : strategies_) {
      if (allowed(strategy) && fits(strategy)) {
        known.emplace_back(faster
                               ? estimator_.step_time(spec_, strategy.training, ideal, cache_).all()
                               : strategy.time.all(),
                           &strategy);
      }
    }
    std::stable_sort(known.begin(), known.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return known;
  }

  const Estimator& estimator_;
  const ModelSpec& spec_;
  const Cluster& cluster_;
  std::set<std::int64_t> micro_batches_;
  double share_;
  ScheduleCache cache_;
  std::vector<Candidate> strategies_;
  Bounds bounds_[2][2];
};

/// Doubles and halves a condition until another mesh wins, then bisects for the turning point.
TurningPoint nearest(const char* condition, double now, const Candidate& present,
                     const std::function<Winner(double)>& winner_at) {
  TurningPoint turn{condition, now, now, {}};
  const auto other_at = [&](double value) {
    Winner winner = winner_at(value);
    return winner && !same_mesh(*winner, present) ? winner : std::nullopt;
  };
  // More and less are tried in turns: the nearer of the two turns is wanted.
  for (double factor = 2; factor <= kFarthestChange && !turn.winner; factor *= 2) {
    for (const bool more : {true, false}) {
      const auto value = [&](double times) { return more ? now * times : now / times; };
      Winner winner = other_at(value(factor));
      if (!winner) continue;
      double same = factor / 2;
      double other = factor;
      for (int i = 0; i < kHalvings; ++i) {
        // Bisection in the logarithm: a factor, not a difference, is sought.
        const double middle = std::sqrt(same * other);
        if (Winner closer = other_at(value(middle))) {
          other = middle;
          winner = closer;
        } else {
          same = middle;
        }
      }
      // Both directions may turn at this factor: the one that needs the smaller change stays.
      const double before =
          turn.winner ? std::max(turn.then / now, now / turn.then) : 2 * kFarthestChange;
      if (other < before) turn.then = value(other), turn.winner = winner;
    }
  }
  return turn;
}

TurningPoint nearest_micro_batch(const Strategies& strategies, const Candidate& present) {
  const auto now = static_cast<double>(present.training.micro_batch);
  TurningPoint turn{"micro-batch", now, now, {}};
  const auto all = strategies.micro_batches();
  std::vector<std::int64_t> sizes(all.begin(), all.end());
  const auto distance = [&](std::int64_t samples) {
    return std::abs(std::log(static_cast<double>(samples) / now));
  };
  std::stable_sort(sizes.begin(), sizes.end(),
                   [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
  for (const std::int64_t samples : sizes) {
    const Winner winner = strategies.with_micro_batch(samples);
    if (samples == present.training.micro_batch || !winner || same_mesh(*winner, present)) continue;
    turn.then = static_cast<double>(samples);
    turn.winner = winner;
    break;
  }
  return turn;
}

Limits limits_of(const StepTime& time, double unlimited) {
  const double all = time.all();
  Limits limits;
  limits.recomputation = time.recomputed / all;
  limits.communication = (time.communication + time.data_exposed) / all;
  limits.bubbles = time.bubble / all;
  limits.compute = 1 - limits.recomputation - limits.communication - limits.bubbles;
  limits.memory = 1 - unlimited / all;
  return limits;
}

std::string quantity(const TurningPoint& turn) {
  if (turn.condition == "micro-batch")
    return fmt::format("{:.0f} instead of {:.0f}", turn.then, turn.now);
  if (turn.condition == "device memory") {
    return fmt::format("{:.2f} times, {:.4g} GiB", turn.then / turn.now,
                       turn.then / (1024.0 * 1024 * 1024));
  }
  return fmt::format("{:.2f} times, {:.4g} GB/s", turn.then / turn.now, turn.then / 1e9);
}

}  // namespace

Sensitivity sensitivity(const Estimator& estimator, const ModelSpec& spec, const Training& start,
                        const Cluster& cluster, const SearchSpace& space, double share) {
  Strategies strategies(estimator, spec, start, cluster, space, share);
  const double memory = cluster.device.memory_bytes;
  const Winner present = strategies.with_memory(memory);
  if (!present) {
    throw Error(ErrorKind::kConfig, "plan",
                fmt::format("device.memory_bytes = {}: nothing fits", memory));
  }
  Sensitivity answer;
  // The fastest of all strategies, fitting or not, tells what memory costs.
  answer.limits = limits_of(present->time, strategies.with_memory(INFINITY)->time.all());
  const auto add_link = [&](const char* condition, Link Cluster::*link) {
    answer.turning_points.push_back(
        nearest(condition, (cluster.*link).bandwidth, *present,
                [&](double bandwidth) { return strategies.with_link(link, bandwidth); }));
  };
  if (cluster.devices_per_host > 1) add_link("links inside hosts", &Cluster::inside);
  if (cluster.hosts > 1) add_link("links between hosts", &Cluster::between);
  answer.turning_points.push_back(nearest("device memory", memory, *present, [&](double bytes) {
    return strategies.with_memory(bytes);
  }));
  answer.turning_points.push_back(nearest_micro_batch(strategies, *present));
  for (TurningPoint& turn : answer.turning_points) {
    if (turn.winner) {
      turn.winner->limited_by =
          limiting_part(spec, turn.winner->training, cluster, turn.winner->time);
    }
  }
  return answer;
}

std::string to_text(const Sensitivity& answer) {
  const Limits& limits = answer.limits;
  std::string text = fmt::format(
      "the first spends {:.1f} % of its step on computation, {:.1f} % on exchange, {:.1f} % in "
      "bubbles, {:.1f} % on recomputation; memory without "
      "end "
      "would save {:.1f} %\n",
      100 * limits.compute, 100 * limits.communication, 100 * limits.bubbles,
      100 * limits.recomputation, 100 * limits.memory);
  text += "what would make another mesh the fastest\n";
  for (const TurningPoint& turn : answer.turning_points) {
    if (!turn.winner) {
      text +=
          fmt::format("  {:<20} {}\n", turn.condition,
                      turn.condition == "micro-batch"
                          ? "no other that fits"
                          : fmt::format("nothing up to {} times more or less", kFarthestChange));
      continue;
    }
    const Training& training = turn.winner->training;
    text += fmt::format("  {:<20} {}: {}, ZeRO {}, micro-batch {}, {:.4g} s\n", turn.condition,
                        quantity(turn), describe_mesh(training), training.zero_stage,
                        training.micro_batch, turn.winner->time.all());
  }
  return text;
}

}  // namespace shoal::plan
