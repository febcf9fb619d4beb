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

/// Returns true if tensor ranks cut a parameter of this layer: its weight, or its bias.
bool cut_in(const model::DividedLinear& layer, std::string_view name) {
  return name.ends_with(".bias") ? layer.bias_cut() : layer.weight_cut();
}

/// Returns how ranks hold a parameter where a recipe divides the model. `block` counts from 0.
Part part_of(std::string_view name, std::int64_t block, const model::TensorDivision& division) {
  const auto part = [](bool cut) { return cut ? Part::kSplit : Part::kReplicated; };
  if (name == "embedding.tokens.weight") return part(division.tokens_cut);
  if (name == "head.output.weight") return part(division.output_cut);
  const auto in = [&](const char* layer) { return name.find(layer) != std::string_view::npos; };
  const Part by_name = part_of(name);
  if (!name.starts_with("blocks.")) return by_name;
  const model::BlockDivision& own = division.blocks[static_cast<std::size_t>(block)];
  if (in(".attention.qkv.")) return part(cut_in(own.qkv, name));
  if (in(".attention.out.")) return part(cut_in(own.out, name));
  if (in(".mlp.gate.")) return part(cut_in(own.gate, name));
  if (in(".mlp.up.")) return part(cut_in(own.up, name));
  if (in(".mlp.down.")) return part(cut_in(own.down, name));
  return by_name;
}

HeldParameters share_of(Part part, double count) {
  switch (part) {
    case Part::kSplit:
      return {count, 0, 0};
    case Part::kReplicated:
      return {0, count, 0};
    case Part::kExpert:
      return {0, 0, count};
  }
  return {};
}

Part part_of(const model::ParameterSpec& parameter, const Training& training) {
  if (!training.division) return part_of(parameter.name);
  return part_of(parameter.name, parameter.unit - 1, *training.division);
}

/// Returns the parameters of embedding, one block and head, undivided, by the default recipe.
std::array<HeldParameters, 3> alike_units(const ModelSpec& spec) {
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
    whole[unit] += share_of(part_of(parameter.name), count);
  }
  return whole;
}

HeldParameters divided(const HeldParameters& whole, const Training& training) {
  return {whole.split / training.degrees.tp, whole.replicated,
          whole.expert / (training.degrees.ep * training.expert_tensor)};
}

/// What a rank holds of a transformer's units.
struct Units {
  HeldParameters embedding;
  std::vector<HeldParameters> blocks;  ///< one for all where they count as alike
  HeldParameters head;

  /// Returns those of `count` blocks.
  HeldParameters sum(std::size_t first, std::size_t count) const {
    if (blocks.size() == 1) return blocks.front() * static_cast<double>(count);
    HeldParameters all;
    for (std::size_t b = first; b < first + count; ++b) all += blocks[b];
    return all;
  }
};

Units units_of(const ModelSpec& spec, const Training& training) {
  if (!training.division) {
    const auto [embedding, block, head] = alike_units(spec);
    return {divided(embedding, training), {divided(block, training)}, divided(head, training)};
  }
  Units units;
  units.blocks.resize(static_cast<std::size_t>(spec.layers));
  for (const model::ParameterSpec& parameter : parameters(spec)) {
    const HeldParameters held = held_of(parameter, training);
    if (parameter.unit == 0) {
      units.embedding += held;
    } else if (parameter.unit > spec.layers) {
      units.head += held;
    } else {
      units.blocks[static_cast<std::size_t>(parameter.unit - 1)] += held;
    }
  }
  return units;
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

HeldParameters HeldParameters::operator*(double times) const {
  return {times * split, times * replicated, times * expert};
}

HeldParameters held_of(const model::ParameterSpec& parameter, const Training& training) {
  return divided(share_of(part_of(parameter, training), static_cast<double>(parameter.count())),
                 training);
}

HeldParameters held_by_embedding(const ModelSpec& spec, const Training& training) {
  return units_of(spec, training).embedding;
}
HeldParameters held_by_block(const ModelSpec& spec, const Training& training) {
  const std::vector<HeldParameters> blocks = units_of(spec, training).blocks;
  if (blocks.size() == 1) return blocks.front();
  HeldParameters all;
  for (const HeldParameters& block : blocks) all += block;
  return all * (1.0 / static_cast<double>(blocks.size()));
}
HeldParameters held_by_head(const ModelSpec& spec, const Training& training) {
  return units_of(spec, training).head;
}
std::vector<HeldParameters> held_by_blocks(const ModelSpec& spec, const Training& training) {
  std::vector<HeldParameters> blocks = units_of(spec, training).blocks;
  blocks.resize(static_cast<std::size_t>(spec.layers), blocks.front());
  return blocks;
}

std::vector<HeldParameters> held_by_stage(const ModelSpec& spec, const Training& training) {
  // A multi-layer perceptron is planned with data parallelism only: one rank holds all.
  if (spec.family == Family::kMlp) return {{static_cast<double>(parameter_count(spec)), 0, 0}};
  const Units units = units_of(spec, training);
  std::vector<HeldParameters> stages;
  std::size_t first = 0;
  for (const std::int64_t blocks : stage_blocks(spec, training)) {
    stages.push_back(units.sum(first, static_cast<std::size_t>(blocks)));
    first += static_cast<std::size_t>(blocks);
  }
  stages.front() += units.embedding;
  stages.back() += units.head;
  const std::int64_t rank = rank_of_stage(training, 0);
  const std::int64_t last = rank_of_stage(training, training.stages() - 1);
  // The head is on another rank than the embedding and needs a copy of the table.
  if (spec.tied_embeddings && rank != last) {
    const double table = static_cast<double>(spec.vocab) * static_cast<double>(spec.hidden);
    const Part part = training.tokens_cut() ? Part::kSplit : Part::kReplicated;
    stages.back() += divided(share_of(part, table), training);
  }
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
