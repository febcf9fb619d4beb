#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shoal/mesh/mesh.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/context/context_parallel.h"
#include "shoal/parallel/expert/expert_parallel.h"
#include "tests/parallel/small_transformers.h"

namespace shoal::parallel {

/// Documents that begin at these columns of a row, [1, columns].
inline at::Tensor documents_from(const std::vector<std::int64_t>& begins, std::int64_t columns) {
  const at::Tensor documents = at::zeros({1, columns}, at::kInt);
  for (const std::int64_t begin : begins) documents.slice(1, begin).add_(1);
  return documents;
}

/// What the ranks of a group divide, and so exchange.
enum class Divided {
  kRing,     ///< columns; keys and values go round
  kHeads,    ///< columns, and heads around attention
  kExperts,  ///< samples, and experts
};

/// A pass of two samples, of experts two a rank, through a small transformer.
struct DividedPass {
  ModelSpec spec;
  std::int64_t columns = 12;
  std::vector<std::int64_t> documents = {};  ///< columns at which one begins, but for the first
  at::ScalarType type = at::kFloat;
  Divided divided = Divided::kRing;
  bool crowded = false;  ///< all tokens choose the first experts

  std::string text() const {
    return fmt::format("{}, divided {}, {} columns", spec.name, static_cast<int>(divided), columns);
  }
};

/// Passes that differ in heads, in whether the ranks divide the columns, in documents (one per
/// column, so that most blocks show nothing, too), types, and in columns beyond one block of
/// scores.
inline std::vector<DividedPass> ring_passes() {
  std::vector<std::int64_t> everywhere;
  for (std::int64_t column = 1; column < 13; ++column) everywhere.push_back(column);
  return {{gpt2(), 12},          {llama(), 11},
          {qwen(), 13, {2, 7}},  {gpt2(), 13, everywhere},
          {llama(), 450, {200}}, {qwen(), 24, {}, at::kDouble}};
}

/// The same with an exchange of heads, as far as `ranks` divide them.
inline std::vector<DividedPass> head_passes(int ranks) {
  std::vector<DividedPass> passes = ring_passes();
  std::erase_if(passes, [&](const DividedPass& pass) { return pass.spec.kv_heads % ranks != 0; });
  for (DividedPass& pass : passes) pass.divided = Divided::kHeads;
  return passes;
}

/// Mixtures of 12 experts that differ in type, in what is defined for whole sequences, and in how
/// many ranks have no row.
inline std::vector<DividedPass> expert_passes() {
  ModelSpec spec = llama();
  spec.name = "mixture";
  spec.experts = 12, spec.experts_per_token = 2, spec.ffn = 10;
  ModelSpec limited = spec;
  limited.router_score = model::RouterScore::kSigmoid;
  limited.router_bias = true, limited.capacity_factor = 0.9, limited.shared_ffn = 6;
  return {{spec, 11, {}, at::kFloat, Divided::kExperts},
          {spec, 150, {}, at::kDouble, Divided::kExperts},
          {limited, 12, {}, at::kFloat, Divided::kExperts},
          {limited, 13, {}, at::kFloat, Divided::kExperts, true}};
}

/// Returns the model of a pass with its values.
inline std::shared_ptr<nn::Model> model_of(const DividedPass& pass, const mesh::Mesh& mesh) {
  ModelSpec spec = pass.spec;
  spec.sequence = pass.columns;
  const auto model = nn::make_model(spec);
  if (pass.divided == Divided::kExperts) {
    place_experts(*model, mesh);
  } else {
    split_sequence(*model, mesh,
                   pass.divided == Divided::kHeads ? ContextMethod::kHeads : ContextMethod::kRing);
  }
  model->materialize(pass.type);
  fill(*model);
  for (const auto& parameter : model->parameters()) {
    if (!pass.crowded || !parameter->name().ends_with("router.bias")) continue;
    const at::NoGradGuard no_grad;
    parameter->tensor().narrow(0, 0, 2).add_(100);
  }
  return model;
}

/// Returns the loss and this rank's gradients of all parameters after a forward and a backward
/// pass, in one row. Collective.
inline at::Tensor loss_and_gradients(const comm::Group& group, const DividedPass& pass) {
  const bool experts = pass.divided == Divided::kExperts;
  const int size = group.size();
  const mesh::Mesh mesh(
      group, experts ? plan::Degrees{.dp_shard = size, .ep = size} : plan::Degrees{.cp = size});
  const auto model = model_of(pass, mesh);
  const std::int64_t samples = experts ? 2 * size : 2;
  const std::int64_t first = experts ? 2 * group.rank() : 0;
  const Data all = data(samples, pass.columns);
  nn::Context context;
  context.key = Key(9);
  context.samples = at::arange(first, first + 2, at::kLong);
  context.labels = all.labels.narrow(0, first, 2);
  context.loss_scale = 1.0 / 50;
  if (!pass.documents.empty()) context.documents = documents_from(pass.documents, pass.columns);
  const BatchShare share(
      mesh, 0, pass.divided == Divided::kHeads ? ContextMethod::kHeads : ContextMethod::kRing);
  const at::Tensor inputs = share.cut(all.inputs.narrow(0, first, 2), context);
  const at::Tensor loss = (*model)(inputs, context);
  loss.backward();
  std::vector<at::Tensor> row{loss.detach().view({1}).to(at::kDouble)};
  for (const auto& parameter : model->parameters()) {
    if (parameter->requires_grad())
      row.push_back(parameter->gradient().reshape(-1).to(at::kDouble));
  }
  return at::cat(row);
}

}  // namespace shoal::parallel
