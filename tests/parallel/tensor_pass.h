#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <cstdint>
#include <vector>

#include "shoal/parallel/activation_checkpoint.h"
#include "shoal/parallel/tensor/tensor_parallel.h"
#include "tests/parallel/one_rank.h"

namespace shoal::parallel {

/// A pass through a small transformer that all ranks of a group divide along tp.
struct TensorPass {
  ModelSpec spec;
  std::int64_t samples, columns;
  model::Keep keep = model::Keep::kEverything;
  at::ScalarType type = at::kFloat;  ///< of the weights
};

/// Twelve of everything that two, three and four ranks divide.
inline ModelSpec divisible(ModelSpec spec) {
  spec.heads = 12, spec.kv_heads = 12, spec.head_size = 2, spec.ffn = 36;
  return spec;
}

/// Passes in which the stream is cut along samples, along columns of one sample, and unevenly; with
/// a plain and a gated MLP, with and without biases; in which blocks are recomputed; in fp32 and
/// bf16, whose products do not depend on how rows are cut (those of double are LibTorch's).
inline std::vector<TensorPass> tensor_passes() {
  const ModelSpec plain = divisible(gpt2());
  const ModelSpec gated = divisible(llama());
  const ModelSpec biased = divisible(qwen());
  return {{plain, 12, 5},
          {plain, 1, 12},
          {plain, 1, 11},
          {gated, 12, 3},
          {gated, 1, 12},
          {biased, 12, 3},
          {plain, 12, 5, model::Keep::kInput},
          {plain, 12, 5, model::Keep::kProducts},
          {gated, 1, 12, model::Keep::kProducts},
          {biased, 12, 3, model::Keep::kEverything, at::kBFloat16}};
}

/// Over links so slow that every product is cut which can be, and so fast that none is.
inline constexpr double kSlowLinks = 1, kFastLinks = 0;

/// Returns the loss and this rank's gradients of all parameters, in one row. Collective.
inline at::Tensor loss_and_gradients(const comm::Group& group, const TensorPass& pass,
                                     double seconds_per_byte) {
  const mesh::Mesh mesh(group, {.tp = group.size()});
  const auto model = nn::make_model(pass.spec);
  split_tensors(*model, mesh, {}, seconds_per_byte);
  checkpoint_activations(
      *model, std::vector<model::Keep>(static_cast<std::size_t>(pass.spec.layers), pass.keep));
  model->materialize(pass.type);
  fill(*model);
  const Data all = data(pass.samples, pass.columns);
  const at::Tensor loss = (*model)(all.inputs, context_of(BatchShare(mesh), all, 0));
  loss.backward();
  std::vector<at::Tensor> row{loss.detach().view({1}).to(at::kDouble)};
  for (const auto& parameter : model->parameters())
    row.push_back(parameter->gradient().reshape(-1).to(at::kDouble));
  return at::cat(row);
}

}  // namespace shoal::parallel
