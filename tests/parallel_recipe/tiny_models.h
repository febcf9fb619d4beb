#pragma once

#include "shoal/model/model_spec.h"

namespace shoal::parallel {

/// GPT-2 with four heads: biases, learned positions, a tied head.
inline model::ModelSpec tiny_gpt2() {
  model::ModelSpec spec = *model::named_model("gpt2-tiny");
  spec.layers = 2;
  spec.hidden = 24;
  spec.heads = spec.kv_heads = 4;
  spec.head_size = 6;
  spec.ffn = 20;
  spec.vocab = 37;
  spec.sequence = 16;
  return spec;
}

/// Llama with two query heads to a key-value head: gated, no biases, a head of its own.
inline model::ModelSpec tiny_llama() {
  model::ModelSpec spec = *model::named_model("llama-tiny");
  spec.layers = 2;
  spec.hidden = 24;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_size = 8;
  spec.ffn = 20;
  spec.vocab = 37;
  spec.sequence = 16;
  spec.tied_embeddings = false;
  return spec;
}

}  // namespace shoal::parallel
