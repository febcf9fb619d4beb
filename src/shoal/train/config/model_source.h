#pragma once

#include <memory>
#include <string>

#include "shoal/data/tokenizer.h"
#include "shoal/model/model_spec.h"

namespace shoal::train {

/// The place of a model's weights: a checkpoint of Shoal, a Hugging Face folder (config.json,
/// safetensors) or a GGUF file.
struct ModelSource {
  enum class Kind { kCheckpoint, kHuggingFace, kGguf };

  std::string path;  ///< the step-<n> folder, the folder, or the file
  Kind kind = Kind::kCheckpoint;
};

/// True for the name of a GGUF file.
inline bool is_gguf(const std::string& path) { return path.ends_with(".gguf"); }

/// Finds the model at `path`: a file that ends in ".gguf", a Hugging Face folder, a step-<n>
/// folder, or a folder of checkpoints or run directory, of which it takes the newest. Reads no
/// tensor. Throws Error(input missing).
ModelSource find_model(const std::string& path);

/// Returns what config.json or the metadata of the checkpoint or file say. Throws Error(config) or
/// Error(data) that names the file, as model::from_hugging_face, checkpoint::format::read_manifest
/// and gguf::read_spec do.
model::ModelSpec spec_of(const ModelSource& source);

/// Returns the tokenizer of the model: that of the Hugging Face folder or GGUF file; the copy in
/// the run directory of a checkpoint, or beside an imported one. Null where there is none. Throws
/// Error(data).
std::shared_ptr<const data::Tokenizer> tokenizer_of(const ModelSource& source);

}  // namespace shoal::train
