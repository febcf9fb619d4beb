#pragma once

#include <memory>
#include <string>

#include "shoal/data/tokenizer.h"
#include "shoal/model/model_spec.h"

namespace shoal::train {

/// Where the weights of a model lie: a Hugging Face folder (config.json, safetensors) or a
/// checkpoint of Shoal.
struct ModelSource {
  std::string path;  ///< the folder, or the step-<n> folder
  bool hugging_face = false;
};

/// Finds the model at `path`: a Hugging Face folder, a step-<n> folder, or a folder of checkpoints
/// or run directory, of which it takes the newest. Reads no tensor. Throws Error(input missing).
ModelSource find_model(const std::string& path);

/// Returns what config.json or the checkpoint's metadata says. Throws Error(config) or Error(data)
/// that names the file, as model::from_hugging_face and checkpoint::format::read_manifest do.
model::ModelSpec spec_of(const ModelSource& source);

/// Returns the tokenizer of the model: that of the Hugging Face folder; the copy in the run
/// directory of a checkpoint, or beside an imported one. Null where there is none. Throws
/// Error(data).
std::shared_ptr<const data::Tokenizer> tokenizer_of(const ModelSource& source);

}  // namespace shoal::train
