#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <vector>

#include "shoal/mesh/mesh.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/context/context_parallel.h"
#include "tests/parallel/small_transformers.h"

namespace shoal::parallel {

/// Documents that begin at these columns of a row, [1, columns].
inline at::Tensor documents_from(const std::vector<std::int64_t>& begins, std::int64_t columns) {
  const at::Tensor documents = at::zeros({1, columns}, at::kInt);
  for (const std::int64_t begin : begins) documents.slice(1, begin).add_(1);
  return documents;
}

/// A pass of two samples through a small transformer whose columns all ranks of a group divide.
struct RingPass {
  ModelSpec spec;
  std::int64_t columns = 12;
  std::vector<std::int64_t> documents = {};  ///< columns at which one begins, but for the first
  at::ScalarType type = at::kFloat;
};

/// Passes that differ in heads, in whether the ranks divide the columns, in documents (one per
/// column, so that most blocks show nothing, too), types, and in columns beyond one block of
/// scores.
inline std::vector<RingPass> ring_passes() {
  std::vector<std::int64_t> everywhere;
  for (std::int64_t column = 1; column < 13; ++column) everywhere.push_back(column);
  return {{gpt2(), 12},          {llama(), 11},
          {qwen(), 13, {2, 7}},  {gpt2(), 13, everywhere},
          {llama(), 450, {200}}, {qwen(), 24, {}, at::kDouble}};
}

/// Returns the loss and this rank's gradients of all parameters after `passes` forward and backward
/// passes, in one row. Collective.
inline at::Tensor loss_and_gradients(const comm::Group& group, const RingPass& pass) {
  const mesh::Mesh mesh(group, {.cp = group.size()});
  ModelSpec spec = pass.spec;
  spec.sequence = pass.columns;
  const auto model = nn::make_model(spec);
  split_sequence(*model, mesh, ContextMethod::kRing);
  model->materialize(pass.type);
  fill(*model);
  const Data all = data(2, pass.columns);
  nn::Context context;
  context.key = Key(9);
  context.samples = at::arange(2, at::kLong);
  context.labels = all.labels;
  context.loss_scale = 1.0 / 50;
  if (!pass.documents.empty()) context.documents = documents_from(pass.documents, pass.columns);
  const at::Tensor inputs = BatchShare(mesh).cut(all.inputs, context);
  const at::Tensor loss = (*model)(inputs, context);
  loss.backward();
  std::vector<at::Tensor> row{loss.detach().view({1}).to(at::kDouble)};
  for (const auto& parameter : model->parameters())
    row.push_back(parameter->gradient().reshape(-1).to(at::kDouble));
  return at::cat(row);
}

}  // namespace shoal::parallel
