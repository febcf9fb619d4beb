#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/checkpoint/format/box.h"
#include "shoal/model/model_spec.h"

namespace shoal::checkpoint::format {

/// Says how one tensor of a Hugging Face model holds the same numbers as a tensor of Shoal's, or as
/// a part of one.
///
/// Both are matrices [rows, columns] here: ours with all dimensions but the last as rows, a vector
/// as a column. Theirs is stored the other way round where `transposed`. Row r of theirs is row
/// `rows[r]` of ours.
struct SameTensor {
  std::string ours;  ///< canonical name
  std::string theirs;
  Shape their_shape;  ///< as stored
  bool transposed = false;
  std::vector<std::int64_t> rows;
};

/// Returns every tensor of the Hugging Face model of that architecture, in its order:
/// GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, MixtralForCausalLM, or
/// Glm4MoeForCausalLM (the experts of DeepSeek-V3 with Llama's attention). What only training uses
/// (capacity, balance) has no place there. GPT-2's linear layers are stored transposed there
/// (Conv1D); our fused query-key-value rows are grouped by key-value head, theirs by kind; rotary
/// pairs are the same. A tied output matrix is not listed. Throws Error(config) for a model that
/// none of these architectures can express.
std::vector<SameTensor> hugging_face_tensors(const model::ModelSpec& spec);

/// Returns the config.json of that model. Throws as hugging_face_tensors.
std::string hugging_face_config(const model::ModelSpec& spec);

}  // namespace shoal::checkpoint::format
