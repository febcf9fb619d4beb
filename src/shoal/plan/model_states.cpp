#include <array>
#include <string_view>

#include "shoal/plan/memory.h"

namespace shoal::plan {
namespace {

enum class Part { kSplit, kReplicated, kExpert };

/// Returns what divides a parameter, by its canonical name. Tensor parallelism splits the rows or
/// columns of a matmul's weight, and the biases of split rows with them.
Part part_of(std::string_view name) {
  if (name.find(".experts.") != std::string_view::npos) return Part::kExpert;
  // Each tensor rank normalises and routes with the whole vectors, as they are small.
  if (name.find("norm") != std::string_view::npos || name.find("router") != std::string_view::npos)
    return Part::kReplicated;
  // Experts that every token visits run on each tensor rank's own tokens.
  if (name.find(".shared.") != std::string_view::npos) return Part::kReplicated;
  if (name == "embedding.positions.weight") return Part::kReplicated;
  // A bias behind a row-parallel layer is added once, to the sum of the ranks' parts.
  if (name.ends_with("attention.out.bias") || name.ends_with("mlp.down.bias"))
    return Part::kReplicated;
  return Part::kSplit;
}

HeldParameters share_of(std::string_view name, double count) {
  switch (part_of(name)) {
    case Part::kSplit:
      return {count, 0, 0};
    case Part::kReplicated:
      return {0, count, 0};
    case Part::kExpert:
      return {0, 0, count};
  }
  return {};
}

/// Returns the parameters of embedding, one block and head, undivided.
std::array<HeldParameters, 3> units(const ModelSpec& spec) {
  // Blocks of one kind are alike: one is counted and multiplied, for a search asks thousands of
  // times. Where the first blocks of a mixture are dense, the mean block stands for all.
  ModelSpec small = spec;
  const bool both = spec.dense_layers > 0;
  small.layers = both ? 2 : 1;
  small.dense_layers = both ? 1 : 0;
  const double dense = static_cast<double>(spec.dense_layers) / static_cast<double>(spec.layers);
  std::array<HeldParameters, 3> whole;
  for (const model::ParameterSpec& parameter : parameters(small)) {
    const auto blocks = static_cast<int>(small.layers);
    const bool block = parameter.unit >= 1 && parameter.unit <= blocks;
    double count = static_cast<double>(parameter.count());
    if (block && both) count *= parameter.unit == 1 ? dense : 1 - dense;
    const int unit = block ? 1 : (parameter.unit == 0 ? 0 : 2);
    whole[unit] += share_of(parameter.name, count);
  }
  return whole;
}

HeldParameters divided(const HeldParameters& whole, const Training& training) {
  return {whole.split / training.degrees.tp, whole.replicated,
          whole.expert / (training.degrees.ep * training.expert_tensor)};
}

}  // namespace

HeldParameters& HeldParameters::operator+=(const HeldParameters& other) {
  split += other.split;
  replicated += other.replicated;
  expert += other.expert;
  return *this;
}

StateBytes state_bytes(const StateBytes& whole, int zero_stage, double ranks) {
  StateBytes held = whole;
  if (zero_stage >= 1) {
    // Stage 1 cuts the optimizer's states, 2 the gradients too, 3 the parameters too (Rajbhandari
    // et al., 2020, figure 1).
    held.master /= ranks;
    held.moments /= ranks;
  }
  if (zero_stage >= 2) held.gradient /= ranks;
  if (zero_stage >= 3) held.parameter /= ranks;
  return held;
}

HeldParameters held_of(const model::ParameterSpec& parameter, const Training& training) {
  return divided(share_of(parameter.name, static_cast<double>(parameter.count())), training);
}

HeldParameters held_by_embedding(const ModelSpec& spec, const Training& training) {
  return divided(units(spec)[0], training);
}
HeldParameters held_by_block(const ModelSpec& spec, const Training& training) {
  return divided(units(spec)[1], training);
}
HeldParameters held_by_head(const ModelSpec& spec, const Training& training) {
  return divided(units(spec)[2], training);
}

std::vector<HeldParameters> held_by_stage(const ModelSpec& spec, const Training& training) {
  // A multi-layer perceptron is planned with data parallelism only: one rank holds all.
  if (spec.family == Family::kMlp) return {{static_cast<double>(parameter_count(spec)), 0, 0}};
  const auto whole = units(spec);
  const HeldParameters block = divided(whole[1], training);
  std::vector<HeldParameters> stages;
  for (const std::int64_t blocks : stage_blocks(spec, training)) {
    const double n = blocks;
    stages.push_back({n * block.split, n * block.replicated, n * block.expert});
  }
  stages.front() += divided(whole[0], training);
  stages.back() += divided(whole[2], training);
  const std::int64_t first = rank_of_stage(training, 0);
  const std::int64_t last = rank_of_stage(training, training.stages() - 1);
  // The head is on another rank than the embedding and needs a copy of the table.
  if (spec.tied_embeddings && first != last)
    stages.back().split += static_cast<double>(spec.vocab) * spec.hidden / training.degrees.tp;
  return stages;
}

std::vector<HeldParameters> held_by_rank(const ModelSpec& spec, const Training& training) {
  const std::vector<HeldParameters> stages = held_by_stage(spec, training);
  std::vector<HeldParameters> ranks(training.degrees.pp);
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    ranks[rank_of_stage(training, static_cast<std::int64_t>(stage))] += stages[stage];
  return ranks;
}

double checkpoint_bytes(const ModelSpec& spec, const Training& training) {
  const StateBytes bytes = precision(training.precision, training.optimizer)->state;
  // "fp16" counts its fp32 copy of the gradient as master too; a checkpoint holds the master alone.
  const double master = bytes.master > 0 ? 4 : 0;
  return static_cast<double>(parameter_count(spec)) * (bytes.parameter + master + bytes.moments);
}

}  // namespace shoal::plan
