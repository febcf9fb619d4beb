#include "shoal/schedule/sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "shoal/base/check.h"

namespace shoal::schedule {
namespace {

using Order = std::vector<int>;

/// Returns the units that a module's pass holds: its own and those of the modules around it.
std::vector<std::set<int>> held_units(const ShardPlan& plan) {
  std::vector<std::set<int>> held;
  for (std::size_t m = 0; m < plan.reads.size(); ++m) {
    // Modules are listed after those around them, so the parent's set is complete.
    held.emplace_back(plan.reads[m].begin(), plan.reads[m].end());
    if (plan.parent[m] >= 0)
      held[m].insert(held[plan.parent[m]].begin(), held[plan.parent[m]].end());
  }
  return held;
}

/// Returns true if backward enters a module: something in it or before it is trained.
bool enters(const ShardPlan& plan, int module) {
  // Modules are numbered in the order in which they begin, so those inside `module` follow it.
  int last = module;
  for (int m = module + 1; m < static_cast<int>(plan.parent.size()) && plan.parent[m] >= module;
       ++m)
    last = m;
  return last >= plan.first_trained;
}

/// Returns the modules in the order of the backward pass, which runs the children of a module from
/// the last to the first, and begins each module before those inside it.
void add_backward(const ShardPlan& plan, int parent, Order& order) {
  for (int m = static_cast<int>(plan.reads.size()) - 1; m >= 0; --m) {
    if (plan.parent[m] == parent && enters(plan, m)) {
      order.push_back(m);
      add_backward(plan, m, order);
    }
  }
}

class Table {
 public:
  explicit Table(const ShardPlan& plan) : held_(held_units(plan)), ahead_(plan.ahead) {}

  /// Appends one pass. It does not release the units for which `keep` returns true.
  template <class Keep>
  void pass(const Order& order, ShardStep step, const Keep& keep) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      // Units of this module and of the next `ahead` ones: their gathers travel while this one
      // computes.
      for (std::size_t j = i; j < std::min(order.size(), i + 1 + static_cast<std::size_t>(ahead_));
           ++j) {
        for (const int unit : held_[order[j]])
          if (gathered_.insert(unit).second) actions_.push_back({ShardStep::kGather, unit});
      }
      actions_.push_back({step, order[i]});
      for (auto unit = gathered_.begin(); unit != gathered_.end();) {
        // A unit that a later module of the pass reads (a tied weight) stays: releasing it would
        // gather it twice.
        const bool again =
            std::any_of(order.begin() + static_cast<std::ptrdiff_t>(i) + 1, order.end(),
                        [&](int module) { return held_[module].contains(*unit); });
        if (again || keep(*unit)) {
          ++unit;
        } else {
          actions_.push_back({ShardStep::kRelease, *unit});
          unit = gathered_.erase(unit);
        }
      }
    }
  }
  const std::set<int>& held(int module) const { return held_[module]; }
  std::vector<ShardAction> take() { return std::move(actions_); }

 private:
  std::vector<std::set<int>> held_;
  int ahead_;
  std::set<int> gathered_;
  std::vector<ShardAction> actions_;
};

/// Returns all modules in the order of the forward pass, of a plan whose lists fit together.
Order forward_order(const ShardPlan& plan) {
  SHOAL_USER_CHECK(plan.parent.size() == plan.reads.size() && plan.ahead >= 0, "shard_table",
                   "{} modules, {} parents, {} ahead", plan.reads.size(), plan.parent.size(),
                   plan.ahead);
  Order forward;
  for (int m = 0; m < static_cast<int>(plan.reads.size()); ++m) {
    SHOAL_USER_CHECK(plan.parent[m] >= -1 && plan.parent[m] < m, "shard_table",
                     "module {} inside module {}", m, plan.parent[m]);
    forward.push_back(m);
  }
  return forward;
}

}  // namespace

std::vector<ShardAction> shard_table(const ShardPlan& plan) {
  const Order forward = forward_order(plan);
  Order backward;
  add_backward(plan, -1, backward);
  Table table(plan);
  // A module around all others reads nothing itself: backward begins with the first one that reads.
  const auto begins = std::find_if(backward.begin(), backward.end(),
                                   [&](int module) { return !table.held(module).empty(); });
  // What backward needs first is not released at the turn.
  table.pass(forward, ShardStep::kForward, [&](int unit) {
    return !plan.reshard_after_forward ||
           (begins != backward.end() && table.held(*begins).contains(unit));
  });
  table.pass(backward, ShardStep::kBackward, [](int) { return false; });
  return table.take();
}

std::vector<ShardAction> forward_shard_table(const ShardPlan& plan) {
  const Order forward = forward_order(plan);
  Table table(plan);
  table.pass(forward, ShardStep::kForward, [](int) { return false; });
  return table.take();
}

std::string to_string(const std::vector<ShardAction>& table) {
  constexpr const char* kWords[] = {"gather", "release", "forward", "backward"};
  std::string text;
  for (const ShardAction& action : table) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kWords[static_cast<int>(action.step)],
                        action.index);
  }
  return text;
}

}  // namespace shoal::schedule
