#include "shoal/schedule/timeline.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "shoal/base/check.h"

namespace shoal::schedule {
namespace {

/// Identifies a message: the stage that it leaves, its micro-batch, and whether it is an
/// activation.
std::size_t message_of(const Schedule& schedule, const Action& action) {
  const bool activation =
      action.kind == Kind::kSendActivation || action.kind == Kind::kReceiveActivation;
  // Sender and receiver must compute the same number: an activation goes from s to s + 1, a
  // gradient from s to s - 1.
  std::size_t sender = action.stage;
  if (action.kind == Kind::kReceiveActivation) --sender;
  if (action.kind == Kind::kReceiveGradient) ++sender;
  return (sender * schedule.micro_batches + action.micro_batch) * 2 + (activation ? 1 : 0);
}

double duration(Kind kind, const StageCost& cost) {
  switch (kind) {
    case Kind::kForward:
      return cost.forward;
    case Kind::kBackward:
      return cost.input_gradient + cost.weight_gradient;
    case Kind::kInputGradient:
      return cost.input_gradient;
    case Kind::kWeightGradient:
      return cost.weight_gradient;
    default:
      return 0;
  }
}

void require_costs(const Schedule& schedule, const Costs& costs) {
  SHOAL_USER_CHECK(costs.stages.size() == 1 || costs.stages.size() == schedule.rank_of_stage.size(),
                   "schedule", "costs must be given once or per stage: given={} stages={}",
                   costs.stages.size(), schedule.stages());
  SHOAL_USER_CHECK(costs.slowdown.empty() || costs.slowdown.size() == schedule.table.size(),
                   "schedule", "slowdown must be given per rank: given={} ranks={}",
                   costs.slowdown.size(), schedule.ranks());
}

}  // namespace

double Timeline::makespan() const {
  return end.empty() ? 0 : *std::max_element(end.begin(), end.end());
}

double Timeline::longest_span() const {
  double longest = 0;
  for (std::size_t rank = 0; rank < end.size(); ++rank)
    longest = std::max(longest, end[rank] - begin[rank]);
  return longest;
}

double Timeline::bubble_fraction() const {
  const double work =
      std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
  return longest_span() > 0 ? 1 - work / longest_span() : 0;
}

Timeline simulate(const Schedule& schedule, const Costs& costs, const Visit& visit) {
  require_costs(schedule, costs);
  const int ranks = schedule.ranks();
  Timeline timeline{std::vector<std::vector<Span>>(ranks), std::vector<double>(ranks),
                    std::vector<double>(ranks, -1), std::vector<double>(ranks)};
  std::vector<double> now(ranks);
  std::vector<std::size_t> at(ranks);
  constexpr double kNotSent = -1;
  std::vector<double> arrival(
      static_cast<std::size_t>(schedule.stages()) * schedule.micro_batches * 2, kNotSent);
  constexpr std::size_t kNothing = -1;
  // Each rank runs until it needs a message that has not been sent; the send puts it back into the
  // queue. Every action is visited once, and nothing polls: the time is linear in the actions.
  std::vector<std::size_t> awaited(ranks, kNothing);
  std::deque<int> ready(ranks);
  std::iota(ready.begin(), ready.end(), 0);
  while (!ready.empty()) {
    const int rank = ready.front();
    ready.pop_front();
    for (; at[rank] < schedule.table[rank].size(); ++at[rank]) {
      const Action& action = schedule.table[rank][at[rank]];
      const double start = now[rank];
      if (is_compute(action.kind)) {
        const double slowdown = costs.slowdown.empty() ? 1 : costs.slowdown[rank];
        const double time = costs.measured
                                ? costs.measured(action)
                                : slowdown * duration(action.kind, costs.of(action.stage));
        now[rank] += time;
        timeline.busy[rank] += time;
        // A rank's time starts with its first computation: it may spend the wait before that on the
        // previous step.
        if (timeline.begin[rank] < 0) timeline.begin[rank] = start;
      } else if (is_send(action.kind)) {
        const std::size_t message = message_of(schedule, action);
        arrival[message] = start + costs.transfer;
        // The link takes `transfer` in all; the sender itself is held for `occupancy` of it.
        now[rank] += costs.occupancy;
        if (awaited[action.peer] == message) {
          awaited[action.peer] = kNothing;
          ready.push_back(action.peer);
        }
      } else if (is_receive(action.kind)) {
        const std::size_t message = message_of(schedule, action);
        if (arrival[message] == kNotSent) {
          awaited[rank] = message;
          break;
        }
        now[rank] = std::max(now[rank], arrival[message]);
      }
      // A message that cost its rank no time makes no span.
      if (now[rank] == start && !is_compute(action.kind)) continue;
      const Span span{action, start, now[rank]};
      visit ? visit(rank, span) : timeline.ranks[rank].push_back(span);
    }
    timeline.end[rank] = now[rank];
  }
  for (int rank = 0; rank < ranks; ++rank) {
    // The queue is empty and this rank is not through: its message will never come.
    SHOAL_USER_CHECK(at[rank] == schedule.table[rank].size(), "schedule",
                     "{}: ranks wait for each other; rank {} is stuck at {}", schedule.name, rank,
                     to_string(schedule.table[rank][at[rank]]));
    timeline.begin[rank] = std::max(0.0, timeline.begin[rank]);
  }
  return timeline;
}

std::vector<double> activation_peak(const Schedule& schedule, const Costs& costs) {
  require_costs(schedule, costs);
  std::vector<double> peaks;
  for (const auto& actions : schedule.table) {
    double held = 0;
    double peak = 0;
    for (const Action& action : actions) {
      const StageCost& cost = costs.of(action.stage);
      if (action.kind == Kind::kForward) held += cost.activations;
      if (action.kind == Kind::kBackward) held -= cost.activations;
      // The weight gradient still needs a part, which stays until that is computed.
      if (action.kind == Kind::kInputGradient) held -= cost.activations - cost.weight_store;
      if (action.kind == Kind::kWeightGradient) held -= cost.weight_store;
      peak = std::max(peak, held);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace shoal::schedule
