#include "shoal/base/check.h"

#include <algorithm>
#include <map>
#include <set>

#include "shoal/schedule/gathers.h"
#include "shoal/schedule/timeline.h"

namespace shoal::schedule {
namespace {

/// The actions that one micro-batch has had in one stage.
struct State {
  bool received = false;
  bool forward = false;
  bool gradient_received = false;
  bool input_gradient = false;
  bool weight_gradient = false;
  bool sent = false;
  bool gradient_sent = false;
};

/// Follows one rank's list and refuses the first action that is wrong at its place.
class RankCheck {
 public:
  RankCheck(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  void run() {
    const auto& actions = schedule_.table[rank_];
    gathers_ = has_gathers(actions);
    for (const Action& action : actions) step(action);
    for (const int stage : gathered_) require(false, {Kind::kRelease, stage}, "is missing");
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      if (schedule_.rank_of_stage[stage] != rank_) continue;
      for (int micro_batch = 0; micro_batch < schedule_.micro_batches; ++micro_batch)
        complete(stage, micro_batch);
    }
  }

 private:
  void require(bool holds, const Action& action, const char* rule) const {
    SHOAL_USER_CHECK(holds, "schedule", "{}: rank {}: {} {}", schedule_.name, rank_,
                     to_string(action), rule);
  }
  void once(bool& flag, const Action& action) const {
    require(!flag, action, "comes twice");
    flag = true;
  }
  bool elsewhere(int stage) const {
    return stage >= 0 && stage < schedule_.stages() && schedule_.rank_of_stage[stage] != rank_;
  }

  /// Checks that a neighbouring stage on this rank has produced the operand already.
  bool produced(int stage, int micro_batch, bool State::*flag) {
    return states_[{stage, micro_batch}].*flag;
  }

  void step(const Action& action) {
    require(action.stage >= 0 && action.stage < schedule_.stages(), action,
            "is of a stage that does not exist");
    require(action.micro_batch >= 0 && action.micro_batch < schedule_.micro_batches, action,
            "is of a micro-batch that does not exist");
    require(schedule_.rank_of_stage[action.stage] == rank_, action,
            "is of a stage that this rank does not hold");
    const int stage = action.stage;
    const int micro_batch = action.micro_batch;
    const int last = schedule_.stages() - 1;
    State& state = states_[{stage, micro_batch}];
    // Activations go to the next stage and gradients come from it; the other two kinds have their
    // peer before them.
    const bool to_next =
        action.kind == Kind::kSendActivation || action.kind == Kind::kReceiveGradient;
    if (is_send(action.kind) || is_receive(action.kind)) {
      const int other = to_next ? stage + 1 : stage - 1;
      require(elsewhere(other), action, "has nobody at its other end");
      require(action.peer == schedule_.rank_of_stage[other], action, "names the wrong peer");
    }
    if (gathers_ && reads_parameters(action.kind))
      require(gathered_.contains(stage), action, "comes before its stage is gathered");
    switch (action.kind) {
      case Kind::kForward:
        // `received` can be set only for a stage whose neighbour is elsewhere, and produced() only
        // on this rank: one of the two holds, whichever way the input comes.
        require(stage == 0 || state.received || produced(stage - 1, micro_batch, &State::forward),
                action, "comes before its input");
        return once(state.forward, action);
      case Kind::kBackward:
      case Kind::kInputGradient:
        require(state.forward, action, "comes before its forward");
        require(stage == last || state.gradient_received ||
                    produced(stage + 1, micro_batch, &State::input_gradient),
                action, "comes before the gradient of its output");
        once(state.input_gradient, action);
        // A whole backward counts as both halves.
        if (action.kind == Kind::kBackward) once(state.weight_gradient, action);
        return;
      case Kind::kWeightGradient:
        require(state.input_gradient, action, "comes before its input gradient");
        return once(state.weight_gradient, action);
      case Kind::kReceiveActivation:
        return once(state.received, action);
      case Kind::kReceiveGradient:
        return once(state.gradient_received, action);
      case Kind::kSendActivation:
        require(state.forward, action, "comes before its forward");
        return once(state.sent, action);
      case Kind::kSendGradient:
        require(state.input_gradient, action, "comes before its input gradient");
        return once(state.gradient_sent, action);
      case Kind::kGather:
        return require(gathered_.insert(stage).second, action, "comes twice");
      case Kind::kRelease:
        return require(gathered_.erase(stage) == 1, action, "comes before its stage is gathered");
    }
  }

  void complete(int stage, int micro_batch) {
    const State& state = states_[{stage, micro_batch}];
    const auto missing = [&](bool there, Kind kind) {
      require(there, {kind, stage, micro_batch}, "is missing");
    };
    missing(state.forward, Kind::kForward);
    missing(state.input_gradient, Kind::kInputGradient);
    missing(state.weight_gradient, Kind::kWeightGradient);
    if (elsewhere(stage + 1)) missing(state.sent, Kind::kSendActivation);
    if (elsewhere(stage - 1)) missing(state.gradient_sent, Kind::kSendGradient);
  }

  const Schedule& schedule_;
  int rank_;
  std::map<std::pair<int, int>, State> states_;
  bool gathers_ = false;  ///< this rank's list says when stages are gathered
  std::set<int> gathered_;
};

}  // namespace

void check(const Schedule& schedule) {
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    SHOAL_USER_CHECK(
        schedule.rank_of_stage[stage] >= 0 && schedule.rank_of_stage[stage] < schedule.ranks(),
        "schedule", "{}: stage {} is on rank {} of {}", schedule.name, stage,
        schedule.rank_of_stage[stage], schedule.ranks());
  }
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const bool gathers = has_gathers(schedule.table[rank]);
    SHOAL_USER_CHECK(gathers == has_gathers(schedule.table[0]), "schedule",
                     "{}: rank {} gathers {}, and rank 0 does otherwise: all ranks say when stages "
                     "are gathered, or none",
                     schedule.name, rank, gathers ? "stages" : "nothing");
  }
  // First what can be said of one rank's list by itself; then the simulation, whose costs do not
  // matter, finds cycles of ranks that wait for each other.
  for (int rank = 0; rank < schedule.ranks(); ++rank) RankCheck(schedule, rank).run();
  simulate(schedule, {{StageCost{}}, 0, 0, {}});
}

}  // namespace shoal::schedule
