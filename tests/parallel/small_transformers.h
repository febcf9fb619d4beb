#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <cstdint>

#include "shoal/nn/module.h"

namespace shoal::parallel {

using model::ModelSpec;

// Transformers of two blocks, and values for them that show what is counted twice.

inline ModelSpec gpt2() {
  ModelSpec spec = *model::named_model("gpt2-tiny");
  spec.layers = 2, spec.hidden = 24, spec.heads = 4, spec.kv_heads = 4, spec.head_size = 6;
  spec.ffn = 20, spec.vocab = 37, spec.sequence = 16, spec.dropout = 0.1;
  return spec;
}

inline ModelSpec llama() {
  ModelSpec spec = *model::named_model("llama-tiny");
  spec.layers = 2, spec.hidden = 24, spec.heads = 4, spec.kv_heads = 2, spec.head_size = 8;
  spec.ffn = 20, spec.vocab = 37, spec.sequence = 16, spec.tied_embeddings = false;
  return spec;
}

/// Biases and norms of queries and keys, as in Qwen2 and Qwen3 together.
inline ModelSpec qwen() {
  ModelSpec spec = llama();
  spec.qkv_bias = true, spec.qk_norm = true, spec.tied_embeddings = true;
  return spec;
}

inline at::Tensor local_part(const at::Tensor& whole, const mesh::Box& box) {
  at::Tensor part = whole;
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    const std::int64_t length = box.end[d] - box.begin[d];
    if (length < part.size(dim)) part = part.narrow(dim, box.begin[d], length);
  }
  return part;
}

/// Values of a whole parameter that follow from its name and are nowhere 0 or 1: what a fresh model
/// has (biases 0, norms 1) hides what is counted twice.
inline at::Tensor perturbed(const nn::Parameter& parameter) {
  double seed = 0;
  for (const char c : parameter.name()) seed = 0.7 * seed + c;
  const at::Tensor wave = (at::arange(parameter.global_count(), at::kDouble) * 0.61 + seed).sin();
  const double centre = parameter.init() == model::Init::kOnes ? 1 : 0;
  return (wave * 0.2 + centre).view(parameter.global_shape());
}

inline void fill(nn::Model& model) {
  for (const auto& parameter : model.parameters())
    parameter->tensor().detach().copy_(local_part(perturbed(*parameter), parameter->box()));
}

inline at::Tensor tokens(std::int64_t samples, std::int64_t columns) {
  return (at::arange(samples * columns, at::kLong) * 17 + 5).remainder(37).view({samples, columns});
}

/// Inputs and labels of `samples` sequences, some labels ignored.
struct Data {
  at::Tensor inputs, labels;
};

inline Data data(std::int64_t samples, std::int64_t columns) {
  const at::Tensor all = tokens(samples, columns + 1);
  const at::Tensor labels = all.slice(1, 1, columns + 1).clone();
  labels.view({-1}).slice(0, 0, labels.numel(), 7).fill_(-100);
  return {all.slice(1, 0, columns).contiguous(), labels};
}

}  // namespace shoal::parallel
