#include "shoal/plan/logits_recomputation.h"

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/plan/unit_costs.h"
#include "shoal/schedule/gathers.h"
#include "shoal/schedule/generators.h"
#include "shoal/schedule/timeline.h"

namespace shoal::plan {
namespace {

using schedule::Action;
using schedule::Kind;
using schedule::Schedule;

/// Returns the most micro-batches of the last stage between their forward pass and the gradient of
/// the stage's input.
int held_by_head(const Schedule& table) {
  int held = 0;
  int most = 0;
  for (const Action& action : table.table[static_cast<std::size_t>(table.rank_of_stage.back())]) {
    if (action.stage + 1 != table.stages()) continue;
    if (action.kind == Kind::kForward) ++held;
    if (action.kind == Kind::kBackward || action.kind == Kind::kInputGradient) --held;
    most = std::max(most, held);
  }
  return most;
}

bool puts_weights_off(const Schedule& table) {
  return std::ranges::any_of(table.table, [](const std::vector<Action>& actions) {
    return std::ranges::any_of(
        actions, [](const Action& action) { return action.kind == Kind::kWeightGradient; });
  });
}

/// Returns the time of the table, in FLOPs. A product of a backward pass takes what that of the
/// forward pass takes.
double simulated(const Schedule& table, const std::vector<double>& costs,
                 const std::vector<std::int64_t>& units_of_stage, const HeadProducts& head) {
  schedule::Costs stages;
  std::size_t unit = 0;
  for (const std::int64_t units : units_of_stage) {
    schedule::StageCost stage{.forward = 0, .input_gradient = 0, .weight_gradient = 0};
    for (const std::size_t end = unit + static_cast<std::size_t>(units); unit < end; ++unit) {
      const bool last = unit + 1 == costs.size();
      stage.forward += costs[unit] * (last ? head.forward : 1);
      stage.input_gradient += costs[unit] * (last ? head.input_gradient : 1);
      stage.weight_gradient += costs[unit] * (last ? head.weight_gradient : 1);
    }
    stages.stages.push_back(stage);
  }
  const auto drop = [](int, const schedule::Span&) {};
  return schedule::simulate(table, stages, drop).makespan();
}

}  // namespace

std::int64_t head_rows(const ModelSpec& spec, const Training& training) {
  const Degrees& degrees = training.degrees;
  const std::int64_t columns = (training.length(spec) + degrees.cp - 1) / degrees.cp;
  if (training.output_cut()) return training.micro_batch * columns;
  if (training.micro_batch % degrees.tp == 0) return training.micro_batch / degrees.tp * columns;
  return training.micro_batch * ((columns + degrees.tp - 1) / degrees.tp);
}

HeadProducts head_products(std::int64_t rows, bool recompute_logits) {
  if (rows <= kLossRows) return {};
  if (recompute_logits) return {.forward = 2, .input_gradient = 0, .weight_gradient = 2};
  return {.forward = 3, .input_gradient = 0, .weight_gradient = 0};
}

bool recomputes_logits(const ModelSpec& spec, const Training& training, const Schedule& table,
                       const std::vector<std::int64_t>& units_of_stage) {
  if (spec.family == Family::kMlp || table.ranks() < 2) return false;
  const std::int64_t rows = head_rows(spec, training);
  if (rows <= kLossRows) return false;
  const bool late = puts_weights_off(table);
  // Weight gradients read no parameters: a table releases a stage when it has its input gradients.
  if (late && schedule::has_gathers(table)) return false;
  if (held_by_head(table) > 1) return true;
  if (!late) return false;
  const auto costs = unit_costs(spec, training.length(spec));
  return simulated(table, costs, units_of_stage, head_products(rows, true)) <
         simulated(table, costs, units_of_stage, head_products(rows, false));
}

bool recomputes_logits(const ModelSpec& spec, const Training& training) {
  if (training.recompute_logits) return *training.recompute_logits;
  if (training.degrees.pp == 1 || spec.family == Family::kMlp ||
      head_rows(spec, training) <= kLossRows)
    return false;
  return recomputes_logits(spec, training, pipeline_table(training), stage_units(spec, training));
}

std::vector<std::int64_t> stage_units(const ModelSpec& spec, const Training& training) {
  std::vector<std::int64_t> units = stage_blocks(spec, training);
  ++units.front();
  ++units.back();
  return units;
}

std::string describe_head(const ModelSpec& spec, const Training& training, bool recompute) {
  if (training.degrees.pp == 1 || spec.family == Family::kMlp ||
      head_rows(spec, training) <= kLossRows)
    return "";
  return recompute
             ? "the gradient of its matrix is made in the backward pass, from logits that are "
               "computed again"
             : "the gradient of its matrix is finished in the forward pass";
}

Schedule computation_table(const Training& training) {
  if (!training.table) {
    return schedule::make_schedule(training.schedule, static_cast<int>(training.degrees.pp),
                                   static_cast<int>(training.chunks()),
                                   static_cast<int>(training.micro_batches()));
  }
  SHOAL_USER_CHECK(training.table->micro_batches == training.micro_batches(), "plan",
                   "schedule {}: it has {} micro-batches, and a step has {}", training.table->name,
                   training.table->micro_batches, training.micro_batches());
  return *training.table;
}

Schedule pipeline_table(const Training& training) {
  Schedule table = computation_table(training);
  // A file may say itself when stages are gathered.
  if (training.zero_stage == 3 && !schedule::has_gathers(table))
    schedule::add_gathers(table, static_cast<int>(training.gathered_stages));
  return table;
}

}  // namespace shoal::plan
