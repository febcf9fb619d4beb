#include "shoal/forecast/pipeline_memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shoal/forecast/rank_states.h"
#include "shoal/forecast/unit_moments.h"
#include "shoal/plan/logits_recomputation.h"

namespace shoal::forecast {
namespace {

using schedule::Action;
using schedule::Kind;
using schedule::Schedule;

/// Messages that lie in memory of their own: two that were received ahead (parallel::Messages).
constexpr double kMessages = 2;

/// Units of one stage.
struct StageUnits {
  bool embedding = false;
  std::int64_t first = 0, last = 0;  ///< blocks [first, last)
  bool head = false;
  plan::HeldParameters parameters;
};

std::vector<StageUnits> units_of(const ModelSpec& spec, const Training& training) {
  const std::vector<std::int64_t> blocks = plan::stage_blocks(spec, training);
  const std::vector<plan::HeldParameters> held = plan::held_by_blocks(spec, training);
  std::vector<StageUnits> stages(blocks.size());
  std::int64_t first = 0;
  for (std::size_t s = 0; s < blocks.size(); ++s) {
    stages[s].first = first;
    stages[s].last = first += blocks[s];
    for (std::int64_t b = stages[s].first; b < stages[s].last; ++b)
      stages[s].parameters += held[static_cast<std::size_t>(b)];
  }
  stages.front().embedding = true;
  stages.front().parameters += plan::held_by_embedding(spec, training);
  stages.back().head = true;
  stages.back().parameters += plan::held_by_head(spec, training);
  return stages;
}

/// One rank on its way through its list.
class RankWalk {
 public:
  /// `tied`: parameters of the embedding's copy, which the head reads.
  RankWalk(const RankStates& states, const UnitMoments& moments,
           const std::vector<StageUnits>& stages, const plan::HeldParameters& tied)
      : states_(states), moments_(moments), stages_(stages), tied_(tied) {
    // Gradients keep their memory from step to step, but for flat ones that leave.
    differentiated_ = !states.gradients_leave();
  }

  RankMemory run(std::int64_t rank, const std::vector<Action>& actions) {
    for (const Action& action : actions) step(action);
    return {rank, {{"pipeline", most_}, {"optimizer", states_.at_update()}}};
  }

 private:
  void moment(double activations, double workspace) {
    MemoryUse use = states_.with_gradients(differentiated_ ? states_.whole_gradients() : 0);
    use.gathered = states_.shares().shared() ? 0 : gathered_ * states_.bytes().parameter;
    use.activations = held_ + activations + moments_.data();
    use.workspace = workspace;
    use.communication += kMessages * moments_.stream();
    if (use.all() > most_.all()) most_ = use;
  }

  const StageUnits& stage(const Action& action) const {
    return stages_[static_cast<std::size_t>(action.stage)];
  }
  double kept(const StageUnits& units) const {
    double sum = units.head ? moments_.head_input() + moments_.head().back().held : 0;
    for (std::int64_t b = units.first; b < units.last; ++b) sum += moments_.block(b).kept;
    return sum;
  }

  void step(const Action& action) {
    const double units = states_.shares().read(stage(action).parameters) +
                         (stage(action).head ? states_.shares().read(tied_) : 0);
    switch (action.kind) {
      case Kind::kGather:
        gathered_ += units;
        return;
      case Kind::kRelease:
        gathered_ -= units;
        return;
      case Kind::kForward:
        return forward(stage(action));
      case Kind::kBackward:
        return backward(stage(action), false);
      case Kind::kInputGradient:
        return backward(stage(action), true);
      case Kind::kWeightGradient:
        return weight_gradient(stage(action));
      default:
        return;
    }
  }

  void forward(const StageUnits& units) {
    held_ += kept(units);
    // The output is on its way to the next stage while the pass has all that it keeps.
    if (!units.head) return moment(0, moments_.stream());
    const auto moments = moments_.head();
    for (const auto& one : moments) moment(one.held - moments.back().held, one.temporary);
  }

  /// From the last unit to the first: each frees what it keeps. `split`: it leaves the factors of
  /// the products that only weights want.
  void backward(const StageUnits& units, bool split) {
    differentiated_ = true;
    if (units.head) {
      const auto last = moments_.head().back();
      moment(0, last.temporary + (split ? 0 : head_weight_gradient()));
      held_ -= moments_.head_input() + last.held;
      if (split) held_ += moments_.head_factors();
    }
    for (std::int64_t b = units.last - 1; b >= units.first; --b) {
      moment(moments_.block(b).rebuilt,
             moments_.block_backward(b, split ? Weights::kLater : Weights::kNow));
      held_ += (split ? moments_.block_factors(b) : 0) - moments_.block(b).kept;
      // The rest is alive, and the gradient of the block's input.
      moment(0, moments_.stream());
    }
    if (units.embedding) moment(0, moments_.embedding_backward());
  }

  void weight_gradient(const StageUnits& units) {
    if (units.head) {
      moment(0, head_weight_gradient());
      held_ -= moments_.head_factors();
    }
    for (std::int64_t b = units.first; b < units.last; ++b) held_ -= moments_.block_factors(b);
  }

  double head_weight_gradient() {
    return moments_.head_weight_gradient(!std::exchange(head_written_, true));
  }

  const RankStates& states_;
  const UnitMoments& moments_;
  const std::vector<StageUnits>& stages_;
  plan::HeldParameters tied_;
  bool differentiated_;  ///< gradients have memory
  bool head_written_ = false;
  double gathered_ = 0;  ///< parameters of the gathered stages that count here
  double held_ = 0;      ///< bytes that passes keep for their backward pass
  MemoryUse most_;
};

}  // namespace

std::vector<RankMemory> pipeline_memory(const ModelSpec& spec, const Training& training,
                                        const Cluster& cluster) {
  const Schedule table = plan::pipeline_table(training);
  const UnitMoments moments(spec, training, cluster);
  const std::vector<StageUnits> stages = units_of(spec, training);
  const auto held = plan::held_by_rank(spec, training);
  std::vector<RankMemory> ranks;
  for (int rank = 0; rank < table.ranks(); ++rank) {
    const plan::HeldParameters& own = held[static_cast<std::size_t>(rank)];
    plan::HeldParameters tied = own;
    for (std::size_t s = 0; s < stages.size(); ++s)
      if (table.rank_of_stage[s] == rank) tied += stages[s].parameters * -1;
    const RankStates states(training, cluster, own);
    RankWalk walk(states, moments, stages, tied);
    ranks.push_back(walk.run(rank, table.table[rank]));
  }
  return ranks;
}

}  // namespace shoal::forecast
