#include "shoal/schedule/gathers.h"

#include <algorithm>
#include <vector>

#include "shoal/base/check.h"

namespace shoal::schedule {
namespace {

/// Returns the stages of the next actions that read parameters, from `begin` on, each once, in the
/// order of their use; at most `count`.
std::vector<int> next_stages(const std::vector<Action>& actions, std::size_t begin,
                             std::size_t count) {
  std::vector<int> stages;
  for (std::size_t i = begin; i < actions.size() && stages.size() < count; ++i) {
    const int stage = actions[i].stage;
    if (reads_parameters(actions[i].kind) && std::ranges::find(stages, stage) == stages.end())
      stages.push_back(stage);
  }
  return stages;
}

std::vector<Action> with_gathers(const std::vector<Action>& actions, std::size_t held) {
  std::vector<Action> result;
  std::vector<int> gathered;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (reads_parameters(actions[i].kind)) {
      const std::vector<int> wanted = next_stages(actions, i, held);
      // In front of the wait for the input, which the gather goes along with.
      auto at = result.end();
      while (at != result.begin() && is_receive(std::prev(at)->kind)) --at;
      std::vector<Action> moves;
      // First the releases: so there are never more than `held`.
      std::erase_if(gathered, [&](int stage) {
        const bool gone = std::ranges::find(wanted, stage) == wanted.end();
        if (gone) moves.push_back({Kind::kRelease, stage});
        return gone;
      });
      for (const int stage : wanted) {
        if (std::ranges::find(gathered, stage) != gathered.end()) continue;
        moves.push_back({Kind::kGather, stage});
        gathered.push_back(stage);
      }
      result.insert(at, moves.begin(), moves.end());
    }
    result.push_back(actions[i]);
  }
  for (const int stage : gathered) result.push_back({Kind::kRelease, stage});
  return result;
}

/// Returns the largest number of stages that a list holds at a time.
std::size_t most_held(const std::vector<Action>& actions) {
  std::size_t held = 0;
  std::size_t most = 0;
  for (const Action& action : actions) {
    if (action.kind == Kind::kGather) most = std::max(most, ++held);
    if (action.kind == Kind::kRelease) --held;
  }
  return most;
}

}  // namespace

bool has_gathers(const std::vector<Action>& actions) {
  return std::ranges::any_of(actions,
                             [](const Action& action) { return moves_parameters(action.kind); });
}

bool has_gathers(const Schedule& schedule) {
  return std::ranges::any_of(schedule.table,
                             [](const auto& actions) { return has_gathers(actions); });
}

void add_gathers(Schedule& schedule, int held) {
  SHOAL_USER_CHECK(held >= 0, "schedule", "{}: {} stages are held: at least 1, or 0 for all",
                   schedule.name, held);
  SHOAL_USER_CHECK(!has_gathers(schedule), "schedule", "{} has gathers already", schedule.name);
  const auto room = held > 0 ? static_cast<std::size_t>(held) : schedule.rank_of_stage.size();
  for (auto& actions : schedule.table) actions = with_gathers(actions, room);
}

Schedule forward_with_gathers(const Schedule& schedule) {
  Schedule forward = forward_only(schedule);
  for (std::size_t rank = 0; rank < forward.table.size(); ++rank) {
    const auto& actions = schedule.table[rank];
    if (has_gathers(actions))
      forward.table[rank] = with_gathers(forward.table[rank], most_held(actions));
  }
  return forward;
}

}  // namespace shoal::schedule
