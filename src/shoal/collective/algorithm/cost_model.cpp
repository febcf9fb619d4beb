#include "shoal/collective/algorithm/cost_model.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

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

/// The messages from one rank to another: when they arrive, in the order sent.
class Wire {
 public:
  bool empty() const { return taken_ == arrivals_.size(); }
  /// Returns true when there was nothing before.
  bool add(double arrival) {
    arrivals_.push_back(arrival);
    return arrivals_.size() == taken_ + 1;
  }
  double first() const { return arrivals_[taken_]; }
  double take() { return arrivals_[taken_++]; }

 private:
  std::vector<double> arrivals_;
  std::size_t taken_ = 0;
};

class Simulation {
 public:
  Simulation(const StepTable& table, std::size_t element_bytes, const CostModel& model,
             std::span<const int> hosts, const LinkMatrix* links)
      : table_(table),
        element_bytes_(element_bytes),
        model_(model),
        hosts_(hosts),
        links_(links),
        at_(table.size()),
        now_(table.size()),
        out_(table.size()),
        in_(table.size()) {
    held_.resize(table.size());
  }

  double run() {
    for (int rank = 0; rank < static_cast<int>(table_.size()); ++rank) schedule(rank);
    // Always the rank that can act soonest, so that messages pass ports in the order of time.
    while (!ready_.empty()) {
      const int rank = ready_.top().second;
      ready_.pop();
      act(rank, table_[rank][at_[rank]++]);
      schedule(rank);
    }
    for (std::size_t rank = 0; rank < table_.size(); ++rank)
      SHOAL_CHECK(at_[rank] == table_[rank].size(), "rank {} is stuck in step {}", rank, at_[rank]);
    return now_.empty() ? 0 : *std::max_element(now_.begin(), now_.end());
  }

 private:
  bool between(int a, int b) const { return !hosts_.empty() && hosts_[a] != hosts_[b]; }

  /// Tells whether a step waits for a message.
  static bool receives(const Step& step) {
    return step.action != Action::kSend && step.action != Action::kFold && step.range.size() > 0;
  }

  /// Notes when the next step of `rank` can begin. One whose message is not there yet is noted when
  /// that is sent; the time does not change any more, as messages of a pair keep their order.
  void schedule(int rank) {
    if (at_[rank] == table_[rank].size()) return;
    const Step& step = table_[rank][at_[rank]];
    double begin = now_[rank];
    if (receives(step)) {
      const auto wire = wires_.find(pair(step.peer, rank));
      if (wire == wires_.end() || wire->second.empty()) return;
      begin = std::max(begin, wire->second.first());
    }
    ready_.emplace(begin, rank);
  }

  void arrive(int sender, int receiver, double time) {
    const bool first = wires_[pair(sender, receiver)].add(time);
    if (!first || at_[receiver] == table_[receiver].size()) return;
    // A rank that waited for this message can be noted now.
    const Step& step = table_[receiver][at_[receiver]];
    if (receives(step) && step.peer == sender) schedule(receiver);
  }

  std::uint64_t pair(int sender, int receiver) const {
    return static_cast<std::uint64_t>(sender) * table_.size() +
           static_cast<std::uint64_t>(receiver);
  }

  void act(int rank, const Step& step) {
    const double bytes = static_cast<double>(step.range.size() * element_bytes_);
    if (bytes == 0) return;
    if (step.action == Action::kFold) {
      now_[rank] += bytes * model_.fold * std::exchange(held_[rank], 0);
      return;
    }
    if (step.action == Action::kSend) return send(rank, step.peer, bytes);
    now_[rank] = std::max(now_[rank], wires_[pair(step.peer, rank)].take()) + model_.overhead;
    if (step.action == Action::kHold) ++held_[rank];
    if (step.action == Action::kReceiveReduce) now_[rank] += bytes * model_.fold;
  }

  LinkCost cost_of_link(int rank, int peer) const {
    if (!links_) return between(rank, peer) ? model_.between : model_.inside;
    const LinkSpeed& speed = links_->at(rank, peer);
    return {1e-6 * static_cast<double>(speed.us), 8e-3 / static_cast<double>(speed.kbit_s)};
  }

  void send(int rank, int peer, double bytes) {
    const bool far = between(rank, peer);
    const LinkCost link = cost_of_link(rank, peer);
    now_[rank] += model_.overhead;
    double left = out_[rank].pass(now_[rank], bytes * link.beta);
    // The ranks of a host share its link to the others, in both directions.
    if (far) left = std::max(left, host_out_[hosts_[rank]].pass(now_[rank], bytes * link.beta));
    // The head of a message arrives alpha after it left; the receiving side is busy while the rest
    // comes in.
    const double head = left - bytes * link.beta + link.alpha;
    double arrived = in_[peer].pass(head, bytes * link.beta);
    if (far) arrived = std::max(arrived, host_in_[hosts_[peer]].pass(head, bytes * link.beta));
    arrive(rank, peer, arrived);
  }

  const StepTable& table_;
  const std::size_t element_bytes_;
  const CostModel& model_;
  std::span<const int> hosts_;
  const LinkMatrix* links_;  ///< null: the links are those of the model
  std::vector<std::size_t> at_;
  std::vector<double> now_;
  std::vector<Port> out_, in_;
  std::map<int, Port> host_out_, host_in_;
  std::unordered_map<std::uint64_t, Wire> wires_;  // by `pair`
  /// When each rank whose next step can begin does so. Among equals the lowest rank is first.
  using Turn = std::pair<double, int>;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> ready_;
  std::vector<int> held_;
};

}  // namespace

double predict_seconds(const StepTable& table, std::size_t element_bytes, const CostModel& model,
                       std::span<const int> hosts, const LinkMatrix* links) {
  SHOAL_USER_CHECK(hosts.empty() || hosts.size() == table.size(), "predict_seconds",
                   "{} hosts for {} ranks", hosts.size(), table.size());
  SHOAL_USER_CHECK(!links || static_cast<std::size_t>(links->ranks()) == table.size(),
                   "predict_seconds", "links of {} ranks for {}", links ? links->ranks() : 0,
                   table.size());
  return Simulation(table, element_bytes, model, hosts, links).run();
}

double predict_seconds_of_equals(std::span<const Step> column, int ranks, std::size_t element_bytes,
                                 const CostModel& model, std::span<const int> hosts) {
  SHOAL_USER_CHECK(hosts.empty() || hosts.size() == static_cast<std::size_t>(ranks),
                   "predict_seconds", "{} hosts for {} ranks", hosts.size(), ranks);
  const auto shares = static_cast<double>(
      hosts.empty() ? 1 : std::count(hosts.begin(), hosts.end(), hosts.front()));
  // A message to the rank at some distance ahead is sent when one comes from as far behind.
  std::vector<Wire> wires(static_cast<std::size_t>(ranks));
  Port out;
  Port in;
  double now = 0;
  int held = 0;
  for (const Step& step : column) {
    const double bytes = static_cast<double>(step.range.size() * element_bytes);
    if (bytes == 0) continue;
    if (step.action == Action::kFold) {
      now += bytes * model.fold * std::exchange(held, 0);
      continue;
    }
    const auto peer = static_cast<std::size_t>(step.peer);
    if (step.action == Action::kSend) {
      const bool far = !hosts.empty() && hosts[peer] != hosts.front();
      const LinkCost& link = far ? model.between : model.inside;
      const double duration = bytes * link.beta * (far ? shares : 1);
      now += model.overhead;
      const double left = out.pass(now, duration);
      wires[peer].add(in.pass(left - duration + link.alpha, duration));
      continue;
    }
    Wire& wire = wires[(wires.size() - peer) % wires.size()];
    SHOAL_CHECK(!wire.empty(), "all ranks wait for the one that is {} behind", step.peer);
    now = std::max(now, wire.take()) + model.overhead;
    if (step.action == Action::kHold) ++held;
    if (step.action == Action::kReceiveReduce) now += bytes * model.fold;
  }
  return now;
}

}  // namespace shoal::collective
