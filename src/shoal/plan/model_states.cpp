#include <string_view>

#include "shoal/plan/memory.h"

namespace shoal::plan {
namespace {

enum class Division { kSplit, kReplicated, kExpert };

/// What divides a parameter, by its canonical name: rows or columns of a product are split, and with them the biases of rows.
Division division(std::string_view name) {
  if (name.find(".experts.") != std::string_view::npos) return Division::kExpert;
  if (name.find("norm") != std::string_view::npos || name.find("router") != std::string_view::npos) return Division::kReplicated;
  if (name == "embedding.positions.weight") return Division::kReplicated;
  if (name.ends_with("attention.out.bias") || name.ends_with("mlp.down.bias")) return Division::kReplicated;
  return Division::kSplit;
}

/// Held parameters of one unit of the model cut down to a single block: 0 embedding, 1 block, 2 head.
HeldParameters unit(const ModelSpec& spec, const Training& training, int index) {
  ModelSpec small = spec;
  small.layers = 1;
  HeldParameters held;
  for (const ParameterSpec& parameter : parameters(small)) {
    if (parameter.unit != index) continue;
    const double count = parameter.count();
    switch (division(parameter.name)) {
      case Division::kSplit:
        held.split += count / training.mesh.tensor;
        break;
      case Division::kReplicated:
        held.replicated += count;
        break;
      case Division::kExpert:
        held.expert += count / (training.mesh.expert * training.mesh.expert_tensor);
        break;
    }
  }
  return held;
}

}  // namespace

HeldParameters& HeldParameters::operator+=(const HeldParameters& other) {
  split += other.split, replicated += other.replicated, expert += other.expert;
  return *this;
}

StateBytes state_bytes(const StateBytes& whole, int zero, double ranks) {
  StateBytes held = whole;
  if (zero >= 1) held.master /= ranks, held.moments /= ranks;
  if (zero >= 2) held.gradient /= ranks;
  if (zero >= 3) held.parameter /= ranks;
  return held;
}

HeldParameters held_by_embedding(const ModelSpec& spec, const Training& training) { return unit(spec, training, 0); }
HeldParameters held_by_block(const ModelSpec& spec, const Training& training) { return unit(spec, training, 1); }
HeldParameters held_by_head(const ModelSpec& spec, const Training& training) { return unit(spec, training, 2); }

HeldParameters held_parameters(const ModelSpec& spec, const Training& training, std::int64_t rank) {
  if (spec.family == Family::kMlp) return {static_cast<double>(parameter_count(spec)), 0, 0};
  const HeldParameters block = held_by_block(spec, training);
  const auto blocks = stage_blocks(spec, training);
  const std::int64_t stages = training.stages();
  HeldParameters held;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    if (rank_of_stage(training, stage) != rank) continue;
    held.split += blocks[stage] * block.split, held.replicated += blocks[stage] * block.replicated, held.expert += blocks[stage] * block.expert;
    if (stage == 0) held += held_by_embedding(spec, training);
    if (stage == stages - 1) {
      held += held_by_head(spec, training);
      const bool elsewhere = rank_of_stage(training, 0) != rank;
      if (spec.tied_embeddings && elsewhere) held.split += static_cast<double>(spec.vocab) * spec.hidden / training.mesh.tensor;
    }
  }
  return held;
}

double checkpoint_bytes(const ModelSpec& spec, const Training& training) {
  const StateBytes bytes = precision(training.precision, training.optimizer)->state;
  // An fp32 master in place of the gradient copy that "fp16" keeps.
  const double master = bytes.master > 0 ? 4 : 0;
  return static_cast<double>(parameter_count(spec)) * (bytes.parameter + master + bytes.moments);
}

}  // namespace shoal::plan
