#pragma once

#include <string>
#include <string_view>

#include "shoal/model/model_spec.h"

namespace shoal::model {

/// Returns a ModelSpec as the JSON object that checkpoints store. Its keys are the field names;
/// only the fields of its family are written.
std::string to_json(const ModelSpec& spec);

/// Reads what `to_json` wrote, and validates it. Throws Error(config) that names `file`, the key
/// and the rule: a key that is unknown, missing or of the wrong type, text that is not JSON, or a
/// spec that `validate` refuses.
ModelSpec from_json(std::string_view text, const std::string& file = "model.json");

/// Reads a Hugging Face config.json: model_type gpt2, llama, mistral (full attention), mixtral,
/// qwen2, qwen3 or glm4_moe (the experts of DeepSeek-V3 with Llama's attention). The spec is named
/// after `_name_or_path` or the type. Throws Error(config) as `from_json` does. It refuses what a
/// spec cannot express (other rope scalings, sliding windows, other biases) instead of dropping it.
ModelSpec from_hugging_face(std::string_view text, const std::string& file = "config.json");

}  // namespace shoal::model
