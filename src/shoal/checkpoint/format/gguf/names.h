#pragma once

#include <string>
#include <vector>

#include "shoal/checkpoint/format/gguf/container.h"
#include "shoal/checkpoint/format/same_tensor.h"
#include "shoal/model/model_spec.h"

namespace shoal::checkpoint::format::gguf {

/// The tensor with the factors of llama3's stretched rotary frequencies, which is no parameter.
inline constexpr const char* kRopeFactors = "rope_freqs.weight";

/// Returns every tensor of the GGUF model of that architecture, but for kRopeFactors: "gpt2",
/// "llama" (with Mixtral's experts, too), "qwen2" or "qwen3". Linear layers lie as ours do,
/// queries, keys and values apart but for GPT-2. The rows of queries and keys of "llama" are
/// ordered for rotation of neighbours, where ours turns the first half of a head with the second.
/// Throws Error(config) for a model that none of these architectures can express.
std::vector<SameTensor> tensors_of(const model::ModelSpec& spec);

/// Returns the metadata that says what the model is: general.architecture, general.name and the
/// shape. Throws as tensors_of.
Metadata metadata_of(const model::ModelSpec& spec);

/// Reads the model that the metadata of a file describes; the vocabulary is the rows of its
/// embedding, and the output matrix is tied where there is none. `rope_factors` are the values of
/// kRopeFactors; empty: the file has none. Throws Error(config) that names the file and the key for
/// what a spec cannot express, Error(data) for what is missing.
model::ModelSpec spec_of(const Header& header, const std::vector<float>& rope_factors);

/// Returns the divisors of the rotary frequencies of a head, [head_size / 2]; empty where nothing
/// is stretched. The formula of model::RopeScaling.
std::vector<float> rope_factors(const model::ModelSpec& spec);

}  // namespace shoal::checkpoint::format::gguf
