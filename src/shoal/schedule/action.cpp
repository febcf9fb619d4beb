#include "shoal/schedule/action.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace shoal::schedule {

const char* mark(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return "F";
    case Kind::kBackward:
      return "B";
    case Kind::kInputGradient:
      return "I";
    case Kind::kWeightGradient:
      return "W";
    case Kind::kSendActivation:
      return "SEND_F";
    case Kind::kReceiveActivation:
      return "RECV_F";
    case Kind::kSendGradient:
      return "SEND_B";
    case Kind::kReceiveGradient:
      return "RECV_B";
    case Kind::kGather:
      return "UNSHARD";
    case Kind::kRelease:
      return "RESHARD";
  }
  return "?";
}

bool is_compute(Kind kind) { return kind <= Kind::kWeightGradient; }
bool is_send(Kind kind) { return kind == Kind::kSendActivation || kind == Kind::kSendGradient; }
bool is_receive(Kind kind) {
  return kind == Kind::kReceiveActivation || kind == Kind::kReceiveGradient;
}
bool reads_parameters(Kind kind) { return is_compute(kind) && kind != Kind::kWeightGradient; }
bool moves_parameters(Kind kind) { return kind == Kind::kGather || kind == Kind::kRelease; }

std::string to_string(const Action& action) {
  if (moves_parameters(action.kind)) return fmt::format("{}{}", action.stage, mark(action.kind));
  return fmt::format("{}{}{}", action.stage, mark(action.kind), action.micro_batch);
}

void add_transfers(Schedule& schedule) {
  const auto& owner = schedule.rank_of_stage;
  const int last = schedule.stages() - 1;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    std::vector<Action> with;
    with.reserve(
        3 * schedule.table[rank].size());  // at most one message before each computation, one after
    for (const Action& action : schedule.table[rank]) {
      const int stage = action.stage;
      // A neighbouring stage on the same rank hands its tensor over in memory: `rank` stands for
      // "no message".
      const int before = stage > 0 ? owner[stage - 1] : rank;
      const int after = stage < last ? owner[stage + 1] : rank;
      const bool forward = action.kind == Kind::kForward;
      // The stage before waits for the gradient of its output only: weight gradients are sent to
      // nobody.
      const bool backward = action.kind == Kind::kBackward || action.kind == Kind::kInputGradient;
      if (forward && before != rank)
        with.push_back({Kind::kReceiveActivation, stage, action.micro_batch, before});
      if (backward && after != rank)
        with.push_back({Kind::kReceiveGradient, stage, action.micro_batch, after});
      with.push_back(action);
      if (forward && after != rank)
        with.push_back({Kind::kSendActivation, stage, action.micro_batch, after});
      if (backward && before != rank)
        with.push_back({Kind::kSendGradient, stage, action.micro_batch, before});
    }
    schedule.table[rank] = std::move(with);
  }
}

namespace {

/// Where a rank's list sends the activation of each stage and micro-batch.
using Sends = std::map<std::pair<int, int>, std::size_t>;

Sends sends_of(const std::vector<Action>& actions) {
  Sends sends;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == Kind::kSendActivation)
      sends.emplace(std::pair{actions[i].stage, actions[i].micro_batch}, i);
  }
  return sends;
}

}  // namespace

std::vector<std::size_t> repeatable(const Schedule& schedule) {
  const int last = schedule.stages() - 1;
  const auto ends = [last](const Action& action) {
    if (action.kind == Kind::kForward) return action.stage == last;
    return action.kind != Kind::kSendActivation && action.kind != Kind::kReceiveActivation &&
           !moves_parameters(action.kind);
  };
  std::vector<std::size_t> counts;
  for (const auto& actions : schedule.table) {
    const auto end = std::find_if(actions.begin(), actions.end(), ends);
    counts.push_back(static_cast<std::size_t>(end - actions.begin()));
  }
  std::vector<Sends> sends;
  for (const auto& actions : schedule.table) sends.push_back(sends_of(actions));
  // Whether what `receive` waits for is sent by the part of its sender.
  const auto is_sent_within = [&](const Action& receive) {
    const auto sender = static_cast<std::size_t>(receive.peer);
    const auto found = sends[sender].find({receive.stage - 1, receive.micro_batch});
    return found != sends[sender].end() && found->second < counts[sender];
  };
  // What a rank sends behind its own part it sends once: a receiver's part ends in front of it.
  // That may take something from a third rank, so all are looked at again.
  for (bool shrunk = true; shrunk;) {
    shrunk = false;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      const auto& actions = schedule.table[rank];
      for (std::size_t i = 0; i < counts[rank]; ++i) {
        if (actions[i].kind != Kind::kReceiveActivation || is_sent_within(actions[i])) continue;
        counts[rank] = i;
        shrunk = true;
      }
    }
  }
  return counts;
}

Schedule forward_only(const Schedule& schedule) {
  Schedule result = schedule;
  for (auto& actions : result.table) {
    std::erase_if(actions, [](const Action& action) {
      return action.kind != Kind::kForward && action.kind != Kind::kSendActivation &&
             action.kind != Kind::kReceiveActivation;
    });
  }
  return result;
}

}  // namespace shoal::schedule
