#include "shoal/collective/algorithm/cost_model.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

/// One direction of a link. It carries one message at a time.
struct Port {
  double free_at = 0;
  /// Returns the time at which a message that arrives at `ready` and takes `duration` has passed.
  double pass(double ready, double duration) {
    free_at = std::max(free_at, ready) + duration;
    return free_at;
  }
};

class Simulation {
 public:
  Simulation(const StepTable& table, std::size_t element_bytes, const CostModel& model,
             std::span<const int> hosts)
      : table_(table),
        element_bytes_(element_bytes),
        model_(model),
        hosts_(hosts),
        at_(table.size()),
        now_(table.size()),
        out_(table.size()),
        in_(table.size()) {
    held_.resize(table.size());
  }

  double run() {
    // Always the rank that can act soonest, so that messages pass ports in the order of time.
    for (int rank = soonest(); rank >= 0; rank = soonest()) act(rank, table_[rank][at_[rank]++]);
    for (std::size_t rank = 0; rank < table_.size(); ++rank)
      SHOAL_CHECK(at_[rank] == table_[rank].size(), "rank {} is stuck in step {}", rank, at_[rank]);
    return now_.empty() ? 0 : *std::max_element(now_.begin(), now_.end());
  }

 private:
  bool between(int a, int b) const { return !hosts_.empty() && hosts_[a] != hosts_[b]; }

  /// The rank whose next step can begin first; -1 when none can.
  int soonest() {
    int best = -1;
    double earliest = 0;
    for (int rank = 0; rank < static_cast<int>(table_.size()); ++rank) {
      if (at_[rank] == table_[rank].size()) continue;
      const Step& step = table_[rank][at_[rank]];
      double begin = now_[rank];
      if (step.action != Action::kSend && step.action != Action::kFold && step.range.size() > 0) {
        const auto& queue = wire_[{step.peer, rank}];
        if (queue.empty()) continue;
        begin = std::max(begin, queue.front());
      }
      if (best < 0 || begin < earliest) {
        best = rank;
        earliest = begin;
      }
    }
    return best;
  }

  void act(int rank, const Step& step) {
    const double bytes = static_cast<double>(step.range.size() * element_bytes_);
    if (bytes == 0) return;
    if (step.action == Action::kFold) {
      now_[rank] += bytes * model_.fold * std::exchange(held_[rank], 0);
      return;
    }
    if (step.action == Action::kSend) return send(rank, step.peer, bytes);
    auto& queue = wire_[{step.peer, rank}];
    now_[rank] = std::max(now_[rank], queue.front()) + model_.overhead;
    queue.pop_front();
    if (step.action == Action::kHold) ++held_[rank];
    if (step.action == Action::kReceiveReduce) now_[rank] += bytes * model_.fold;
  }

  void send(int rank, int peer, double bytes) {
    const bool far = between(rank, peer);
    const LinkCost& link = far ? model_.between : model_.inside;
    now_[rank] += model_.overhead;
    double left = out_[rank].pass(now_[rank], bytes * link.beta);
    // The ranks of a host share its link to the others, in both directions.
    if (far) left = std::max(left, host_out_[hosts_[rank]].pass(now_[rank], bytes * link.beta));
    // The head of a message arrives alpha after it left; the receiving side is busy while the rest
    // comes in.
    const double head = left - bytes * link.beta + link.alpha;
    double arrived = in_[peer].pass(head, bytes * link.beta);
    if (far) arrived = std::max(arrived, host_in_[hosts_[peer]].pass(head, bytes * link.beta));
    wire_[{rank, peer}].push_back(arrived);
  }

  const StepTable& table_;
  const std::size_t element_bytes_;
  const CostModel& model_;
  std::span<const int> hosts_;
  std::vector<std::size_t> at_;
  std::vector<double> now_;
  std::vector<Port> out_, in_;
  std::map<int, Port> host_out_, host_in_;
  std::map<std::pair<int, int>, std::deque<double>> wire_;  // arrival times, by sender and receiver
  std::vector<int> held_;
};

}  // namespace

double predict_seconds(const StepTable& table, std::size_t element_bytes, const CostModel& model,
                       std::span<const int> hosts) {
  SHOAL_USER_CHECK(hosts.empty() || hosts.size() == table.size(), "predict_seconds",
                   "{} hosts for {} ranks", hosts.size(), table.size());
  return Simulation(table, element_bytes, model, hosts).run();
}

}  // namespace shoal::collective
