#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "shoal/parallel/apply.h"
#include "shoal/plan/stage_sizes.h"
#include "shoal/schedule/gathers.h"
#include "shoal/schedule/generators.h"
#include "tests/parallel/small_transformers.h"

// Ways to divide small models among ranks, and what they train on.
namespace shoal::parallel {

using plan::Degrees;

inline constexpr int kMicroBatches = 2;    ///< of a rank, if a way does not say otherwise
inline constexpr int kTrainingSteps = 10;  ///< of training, if a way does not say otherwise
/// Of all ranks and micro-batches, if a way does not say otherwise.
inline constexpr std::int64_t kSamples = 8, kColumns = 16;

/// As DeepSeek-V3's blocks without its attention: a dense block, and one of routed experts beside a
/// shared one, with a loss that balances the experts of each sequence, and a capacity.
inline ModelSpec mixture() {
  ModelSpec spec = *model::named_model("deepseek-moe-tiny");
  spec.layers = 2, spec.hidden = 24, spec.heads = 4, spec.kv_heads = 4, spec.head_size = 6;
  spec.ffn = 12, spec.dense_ffn = 20, spec.shared_ffn = 8, spec.dense_layers = 1;
  spec.experts = 4, spec.experts_per_token = 2, spec.vocab = 37, spec.sequence = 16;
  spec.balance_loss = 0.1;
  spec.capacity_factor = 1;
  return spec;
}

/// As Mixtral's blocks: no dense one, a softmax over all scores, no shared expert, no bias of the
/// router; every token of a sequence finds room.
inline ModelSpec softmax_mixture() {
  ModelSpec spec = *model::named_model("moe-tiny");
  spec.layers = 2, spec.hidden = 24, spec.heads = 4, spec.kv_heads = 2, spec.head_size = 6;
  spec.ffn = 12, spec.experts = 4, spec.experts_per_token = 2, spec.vocab = 37, spec.sequence = 16;
  spec.balance_loss = 0.1;
  return spec;
}

/// One way to divide a model among ranks.
struct Combination {
  Degrees degrees;
  int zero = 0;
  const char* schedule = "1f1b";
  ContextMethod context = ContextMethod::kRing;
  int micro_batches = kMicroBatches;
  int steps = kTrainingSteps;
  std::int64_t samples = kSamples;

  int ranks() const { return static_cast<int>(degrees.ranks()); }
  bool staged() const { return degrees.pp > 1; }
  std::string text() const {
    std::string list;
    const auto add = [&](const char* axis, std::int64_t degree) {
      if (degree > 1) list += fmt::format("{}{} {}", list.empty() ? "" : " × ", axis, degree);
    };
    add("pp", degrees.pp), add("dp_replicate", degrees.dp_replicate);
    add("dp_shard", degrees.dp_shard);
    add(context == ContextMethod::kHeads ? "cp heads" : "cp", degrees.cp);
    add("tp", degrees.tp), add("ep", degrees.ep);
    return list;
  }
  /// With all that tells it from other ways.
  std::string whole_text() const {
    return fmt::format("{}, ZeRO-{}{}, {} steps of {} samples in {} micro-batches", text(), zero,
                       staged() ? fmt::format(", {}", schedule) : "", steps, samples,
                       micro_batches);
  }
};

inline ApplyOptions options_of(const Combination& way, const ModelSpec& spec) {
  ApplyOptions options;
  options.context_method = way.context;
  using Gathers = ShardingOptions::Gathers;
  if (way.zero > 0) {
    options.sharding =
        ShardingOptions{.stage = static_cast<ShardStage>(way.zero),
                        .copies = ShardingOptions::Copies::kCopied,
                        .gathers = way.staged() ? Gathers::kByCaller : Gathers::kByTable,
                        .alone = {}};
  }
  if (!way.staged()) return options;
  const std::string name = way.schedule;
  const bool two_stages = name == "interleaved" || name == "zb-v" || name == "dualpipe-v";
  options.table = schedule::make_schedule(name, static_cast<int>(way.degrees.pp),
                                          two_stages ? 2 : 1, way.micro_batches);
  if (way.zero == 3) schedule::add_gathers(options.table, 1);
  options.units_of_stage = plan::even_stages(spec.layers + 2, options.table.stages());
  return options;
}

/// The rank along pp that has the last stage.
inline int last_stage_of(const ApplyOptions& options) {
  return options.table.ranks() > 0 ? options.table.rank_of_stage.back() : 0;
}

/// The part of a whole parameter, or of what belongs to its elements, that a range has; flat.
inline at::Tensor range_of(const at::Tensor& whole, const OwnedRange& range) {
  return local_part(whole, range.parameter->box()).reshape({-1}).slice(0, range.begin, range.end);
}

}  // namespace shoal::parallel
