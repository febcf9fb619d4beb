#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/checkpoint/format/same_tensor.h"
#include "shoal/model/model_spec.h"

namespace shoal::checkpoint::format {

/// Returns every tensor of the Hugging Face model of that architecture, in its order:
/// GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, MixtralForCausalLM, or
/// Glm4MoeForCausalLM (the experts of DeepSeek-V3 with Llama's attention). Options of training
/// alone (capacity, balance) have no place there. GPT-2's linear layers are stored transposed there
/// (Conv1D); our fused query-key-value rows are grouped by key-value head, theirs by kind; rotary
/// pairs are the same. A tied output matrix is not listed. Throws Error(config) for a model that
/// none of these architectures can express.
std::vector<SameTensor> hugging_face_tensors(const model::ModelSpec& spec);

/// Returns the config.json of that model, with the tokens that begin and end a document (null where
/// they are not known). Throws as hugging_face_tensors.
std::string hugging_face_config(const model::ModelSpec& spec,
                                std::optional<std::int64_t> begin_token = {},
                                std::optional<std::int64_t> end_token = {});

}  // namespace shoal::checkpoint::format
