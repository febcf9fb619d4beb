#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/comm/world.h"
#include "shoal/model/model_spec.h"
#include "shoal/nn/module.h"
#include "shoal/parallel/pipeline/pipeline.h"
#include "shoal/parallel/pipeline/tied_weights.h"
#include "shoal/plan/stage_sizes.h"
#include "shoal/schedule/generators.h"

namespace shoal::parallel {

using plan::even_stages;

// A message has 1,536 bytes: more than travels inside a slot of shared memory.
inline constexpr std::int64_t kRows = 3, kColumns = 8, kVocabulary = 29;

/// Six blocks, eight units: enough for two stages on each of four ranks.
inline model::ModelSpec tiny_spec(const char* family, bool tied) {
  model::ModelSpec spec = *model::named_model(family);
  spec.layers = 6;
  spec.hidden = 16;
  spec.heads = 2;
  spec.kv_heads = spec.gated ? 1 : 2;
  spec.head_size = 8;
  spec.ffn = 24;
  spec.vocab = kVocabulary;
  spec.sequence = kColumns;
  spec.dropout = 0.1;
  spec.tied_embeddings = tied;
  return spec;
}

/// Gives a model memory and values. Biases and norms are not left at 0 and 1, where a gradient that
/// is wrong or counted twice may not show; a name that the weight has in an untied model gives the
/// values of a tied one.
inline void fill(nn::Model& model) {
  model.materialize();
  model.reset_parameters(Key(1));
  for (const auto& parameter : model.parameters()) {
    if (parameter->global_shape().size() > 1) continue;
    const at::Tensor values = parameter->tensor().detach();
    const double phase = static_cast<double>(parameter->name().size());
    values.add_((at::arange(values.numel(), at::kFloat) + phase).sin(), 0.1);
  }
}

/// The micro-batches of a step, which every rank makes from global indices.
inline std::vector<MicroBatch> step_of(int micro_batches, int step = 0, std::int64_t rows = kRows) {
  std::vector<MicroBatch> batch;
  for (int i = 0; i < micro_batches; ++i) {
    MicroBatch one;
    one.context.key = Key(3).child(static_cast<std::uint64_t>(step));
    one.context.micro_batch = i;
    one.context.samples = at::arange(i * rows, (i + 1) * rows, at::kLong);
    const at::Tensor column = at::arange(kColumns + 1, at::kLong);
    const at::Tensor tokens = (one.context.samples.view({-1, 1}) * 11 + column * column + 5 * step)
                                  .remainder(kVocabulary);
    one.input = tokens.slice(1, 0, kColumns).contiguous();
    one.context.labels = tokens.slice(1, 1, kColumns + 1).contiguous();
    one.context.loss_scale = 1.0 / static_cast<double>(micro_batches * rows * kColumns);
    batch.push_back(std::move(one));
  }
  return batch;
}

using Gradients = std::map<std::string, at::Tensor>;

inline Gradients gradients_of(const nn::Model& model) {
  Gradients gradients;
  for (const auto& parameter : model.parameters()) {
    if (parameter->gradient().defined())
      gradients[parameter->name()] = parameter->gradient().clone();
  }
  return gradients;
}

/// What one rank computes, micro-batch by micro-batch, without a pipeline.
struct Reference {
  double loss = 0;
  Gradients gradients;
};

inline Reference run_alone(nn::Model& model, const std::vector<MicroBatch>& batch) {
  Reference result;
  for (const MicroBatch& one : batch) {
    const at::Tensor loss = model(one.input, one.context);
    loss.backward();
    result.loss += loss.item<double>();
  }
  result.gradients = gradients_of(model);
  model.clear_gradients();
  return result;
}

/// One rank of a pipeline over a model of its own.
struct Rank {
  Rank(const model::ModelSpec& spec, const schedule::Schedule& table,
       const std::vector<std::int64_t>& sizes, const comm::Group& group, PipelineEvents events = {})
      : model(nn::make_model(spec)) {
    Stages stages = cut_stages(*model, table, sizes, group.rank());
    fill(*model);
    tied = std::make_unique<TiedWeights>(stages, group);
    pipeline = std::make_unique<Pipeline>(group, table, std::move(stages), std::move(events));
  }
  /// Sums the gradients of tied weights.
  void reduce_ties() const {
    const std::vector<OwnedRange> owned = whole_ranges(model->parameters());
    std::vector<at::Tensor> gradients = whole_gradients(owned);
    tied->reduce(owned, gradients);
  }

  std::shared_ptr<nn::Model> model;
  std::unique_ptr<TiedWeights> tied;
  std::unique_ptr<Pipeline> pipeline;
};

inline int chunks_of(const std::string& name) {
  return name == "interleaved" || name == "zb-v" || name == "dualpipe-v" ? 2 : 1;
}
inline bool has_table(const std::string& name, int ranks, int micro_batches) {
  if (name == "interleaved") return micro_batches % ranks == 0;
  return name != "dualpipe-v" || micro_batches >= 2 * ranks;
}

/// A table of two ranks, of which rank 0 holds both ends of four stages. It sends twenty
/// activations before the gradient for which rank 1 waits: more than a channel of shared memory
/// holds before somebody asks for them.
inline schedule::Schedule many_ahead() {
  using enum schedule::Kind;
  constexpr int kMicroBatches = 20;
  schedule::Schedule table{"by hand", kMicroBatches, {0, 1, 1, 0}, {{}, {}}};
  const auto add = [&](int rank, schedule::Kind kind, int stage, int micro_batch) {
    table.table[rank].push_back({kind, stage, micro_batch});
  };
  for (int i = 0; i < kMicroBatches; ++i) add(0, kForward, 0, i);
  for (int i = 0; i < kMicroBatches; ++i) {
    for (const int stage : {1, 2}) add(1, kForward, stage, i);
    for (const int stage : {2, 1}) add(1, kBackward, stage, i);
    add(0, kForward, 3, i);
    for (const int stage : {3, 0}) add(0, kBackward, stage, i);
  }
  schedule::add_transfers(table);
  return table;
}

/// Ranks as threads. The timeout is what bounds a test that hangs.
inline comm::WorldOptions threads(int ranks) {
  return {.size = ranks,
          .memory_limit_bytes = std::size_t{1} << 31,
          .timeout = std::chrono::seconds(30)};
}

}  // namespace shoal::parallel
