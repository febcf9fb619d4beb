#include "shoal/parallel/pipeline/cut_stages.h"

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/parallel/ownership.h"
#include "shoal/plan/stage_sizes.h"

namespace shoal::parallel {
namespace {

bool contains(const Parameters& list, const std::shared_ptr<nn::Parameter>& parameter) {
  return std::find(list.begin(), list.end(), parameter) != list.end();
}

/// Returns the width of what unit `unit` > 0 reads.
std::int64_t width_before(const model::ModelSpec& spec, std::int64_t unit) {
  return spec.family == model::Family::kMlp ? spec.widths.at(unit - 1) : spec.hidden;
}

/// Cuts the whole list of units.
std::vector<Stage> all_stages(const nn::Model& model,
                              const std::vector<std::int64_t>& units_of_stage) {
  std::vector<Stage> stages;
  auto next = model.units().begin();
  for (const std::int64_t count : units_of_stage) {
    stages.push_back({static_cast<int>(stages.size()), {next, next + count}});
    next += count;
  }
  return stages;
}

/// Finds the parameters that stages of more than one rank use, in the order of the model.
std::vector<TiedWeight> tied_weights(const nn::Model& model, const std::vector<Stage>& stages,
                                     const std::vector<int>& rank_of_stage, int rank) {
  std::vector<TiedWeight> tied;
  for (const auto& parameter : model.parameters()) {
    TiedWeight weight{parameter, {}};
    for (const Stage& stage : stages) {
      const int user = rank_of_stage[stage.number];
      const bool known =
          std::find(weight.ranks.begin(), weight.ranks.end(), user) != weight.ranks.end();
      if (!known && contains(stage.parameters(), parameter)) weight.ranks.push_back(user);
    }
    if (weight.ranks.size() < 2) continue;
    if (std::find(weight.ranks.begin(), weight.ranks.end(), rank) == weight.ranks.end())
      weight.parameter = nullptr;
    tied.push_back(std::move(weight));
  }
  return tied;
}

}  // namespace

std::vector<std::shared_ptr<nn::Parameter>> Stage::parameters() const {
  Parameters list;
  for (const auto& unit : units) {
    for (const auto& parameter : unit->parameters())
      if (!contains(list, parameter)) list.push_back(parameter);
  }
  return list;
}

std::vector<std::int64_t> Stages::input_shape(int stage, const at::Tensor& input,
                                              const nn::Stream& stream) const {
  auto shape = input.sizes().vec();
  if (stream.divided()) shape.at(static_cast<std::size_t>(stream.dim)) = stream.count;
  if (of_tokens) {
    shape.push_back(width.at(stage));
  } else {
    shape.back() = width.at(stage);
  }
  return shape;
}

Stages cut_stages(nn::Model& model, const schedule::Schedule& table,
                  const std::vector<std::int64_t>& units_of_stage, int rank) {
  SHOAL_USER_CHECK(rank >= 0 && rank < table.ranks(), "stages", "{} has {} ranks, this is rank {}",
                   table.name, table.ranks(), rank);
  plan::check_stages(units_of_stage, static_cast<std::int64_t>(model.units().size()),
                     table.stages());
  const std::vector<Stage> all = all_stages(model, units_of_stage);
  Stages stages;
  stages.of_tokens = model.spec().family != model::Family::kMlp;
  stages.tied = tied_weights(model, all, table.rank_of_stage, rank);
  std::vector<std::size_t> kept;
  std::int64_t unit = 0;
  for (const Stage& stage : all) {
    stages.width.push_back(unit > 0 ? width_before(model.spec(), unit) : 0);
    const std::int64_t end = unit + units_of_stage[stage.number];
    if (table.rank_of_stage[stage.number] == rank) {
      stages.local.push_back(stage);
      for (std::int64_t i = unit; i < end; ++i) kept.push_back(static_cast<std::size_t>(i));
    }
    unit = end;
  }
  model.keep_units(kept);
  return stages;
}

Stages whole_model(nn::Model& model) {
  // An owner of nothing: whoever has the model keeps it alive.
  const std::shared_ptr<nn::Module> unit(std::shared_ptr<void>(), &model);
  return {.local = {{0, {unit}}},
          .tied = {},
          .width = {0},
          .of_tokens = model.spec().family != model::Family::kMlp};
}

}  // namespace shoal::parallel
