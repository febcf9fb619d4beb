#include "shoal/plan/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "shoal/base/check.h"
#include "shoal/base/philox.h"
#include "shoal/schedule/generators.h"

namespace shoal::plan {

namespace {

/// Returns the factor of every pipeline rank's computations.
std::vector<double> slowdowns(const std::vector<Straggler>& stragglers, int p) {
  std::vector<double> factors(p, 1);
  for (const Straggler& straggler : stragglers) {
    SHOAL_USER_CHECK(straggler.rank >= 0 && straggler.rank < p, "simulate",
                     "straggler {}: there are {} pipeline ranks", straggler.rank, p);
    SHOAL_USER_CHECK(straggler.slowdown > 0 && std::isfinite(straggler.slowdown), "simulate",
                     "straggler {}: the factor must be positive: {}", straggler.rank,
                     straggler.slowdown);
    factors[straggler.rank] = straggler.slowdown;
  }
  return factors;
}

}  // namespace

SimulatedStep simulate_step(const Estimator& estimator, const ModelSpec& spec,
                            const Training& training, const Cluster& cluster,
                            const std::vector<Straggler>& stragglers,
                            const schedule::Visit& visit) {
  validate(spec, training, cluster.runtime);
  const auto p = static_cast<int>(training.degrees.pp);
  std::string name = p == 1 ? "1f1b" : training.schedule;
  if (training.virtual_stages > 1) name = "interleaved";
  const auto table = training.table ? *training.table
                                    : schedule::make_schedule(
                                          name, p, static_cast<int>(p == 1 ? 1 : training.chunks()),
                                          static_cast<int>(training.micro_batches()));
  schedule::Costs costs = estimator.stage_costs(spec, training, cluster);
  if (table.stages() != static_cast<int>(costs.stages.size())) {
    // One rank runs the stages that it holds as one.
    schedule::StageCost all{0, 0, 0, 1, 0};
    for (const auto& stage : costs.stages) {
      all.forward += stage.forward;
      all.input_gradient += stage.input_gradient;
      all.weight_gradient += stage.weight_gradient;
    }
    costs.stages = {all};
  }
  costs.slowdown = slowdowns(stragglers, table.ranks());
  SimulatedStep step{schedule::simulate(table, costs, visit), 0};
  // The table covers the micro-batches; exchange and optimizer come behind, as estimated in closed
  // form.
  const StepTime closed = estimator.step_time(spec, training, cluster);
  step.seconds = step_span(training, step.timeline) + closed.data_exposed + closed.optimizer;
  return step;
}

std::vector<double> simulate_collective(const collective::StepTable& table,
                                        double bytes_per_element, AlphaBeta link,
                                        const std::vector<double>& slowdown) {
  const auto ranks = static_cast<int>(table.size());
  SHOAL_USER_CHECK(slowdown.empty() || slowdown.size() == table.size(), "simulate",
                   "slowdown must be given per rank: given={} ranks={}", slowdown.size(), ranks);
  std::vector<double> now(ranks);
  std::vector<std::size_t> at(ranks);
  // As schedule::simulate: a rank runs until it lacks a message, and the sender wakes it. Messages
  // between two ranks keep their order, so a queue for each pair suffices.
  std::vector<std::map<int, std::deque<double>>> arrivals(ranks);  // [receiver][sender], in order
  std::vector<int> awaited(ranks, -1);
  std::deque<int> ready;
  for (int rank = 0; rank < ranks; ++rank) ready.push_back(rank);
  while (!ready.empty()) {
    const int rank = ready.front();
    ready.pop_front();
    const double factor = slowdown.empty() ? 1 : slowdown[rank];
    for (; at[rank] < table[rank].size(); ++at[rank]) {
      const collective::Step& step = table[rank][at[rank]];
      const double bytes = static_cast<double>(step.range.size()) * bytes_per_element;
      if (step.action == collective::Action::kSend) {
        // The sender is busy until its link has carried the message.
        now[rank] += factor * (link.alpha + bytes * link.beta);
        arrivals[step.peer][rank].push_back(now[rank]);
        if (awaited[step.peer] == rank) {
          awaited[step.peer] = -1;
          ready.push_back(step.peer);
        }
        continue;
      }
      // A receive: the message may have arrived already, or this rank waits and is put back into
      // the queue by its sender.
      auto& queue = arrivals[rank][step.peer];
      if (queue.empty()) {
        awaited[rank] = step.peer;
        break;
      }
      now[rank] = std::max(now[rank], queue.front());
      if (step.action == collective::Action::kReceiveReduce)
        now[rank] += factor * bytes * link.gamma;
      queue.pop_front();
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    SHOAL_USER_CHECK(at[rank] == table[rank].size(), "simulate",
                     "ranks wait for each other; rank {} waits for {} at step {}", rank,
                     awaited[rank], at[rank]);
  }
  return now;
}

SimulatedRun simulate_run(double step_s, std::int64_t steps, double checkpoint_interval_s,
                          const FailureModel& failures, std::uint64_t seed) {
  SHOAL_USER_CHECK(step_s > 0 && steps >= 0 && checkpoint_interval_s > 0, "simulate",
                   "step, number of steps and interval must be positive: {} {} {}", step_s, steps,
                   checkpoint_interval_s);
  const Key key = Key(seed).child("failures");
  std::uint64_t draw = 0;
  const auto next_failure = [&] {
    // The inverse of the exponential distribution at 1 - u, which is never 0.
    return failures.mtbf_s > 0 ? -failures.mtbf_s * std::log1p(-key.uniform(draw++)) : INFINITY;
  };
  const double useful = step_s * static_cast<double>(steps);
  SimulatedRun run;
  double done = 0;
  double until_failure = next_failure();
  while (done < useful) {
    const double training = std::min(checkpoint_interval_s, useful - done);
    // A segment counts only when its checkpoint is written; a failure before that loses all of it.
    // The last segment needs none.
    const bool last = done + training >= useful;
    const double segment = training + (last ? 0 : failures.checkpoint_s);
    if (segment <= until_failure) {
      run.seconds += segment;
      until_failure -= segment;
      done += training;
      if (!last) ++run.checkpoints;
      continue;
    }
    ++run.failures;
    run.seconds += until_failure + failures.restart_s;
    run.lost_s += until_failure;
    SHOAL_USER_CHECK(run.failures < 100000000, "simulate",
                     "the run never ends: it fails every {} s and a checkpoint needs {} s",
                     failures.mtbf_s, segment);
    until_failure = next_failure();
  }
  return run;
}

}  // namespace shoal::plan
