#pragma once

#include <string>

#include "shoal/train/config/model_source.h"

namespace shoal::train {

/// The weights of a model source as a checkpoint that any mesh loads. Those of a Hugging Face
/// folder or a GGUF file are rewritten into `scratch`, which is removed again with this object.
class SourceWeights {
 public:
  /// Throws as checkpoint::format::import_hugging_face and gguf::import_model.
  SourceWeights(const ModelSource& source, std::string scratch);
  ~SourceWeights();
  SourceWeights(const SourceWeights&) = delete;
  SourceWeights& operator=(const SourceWeights&) = delete;

  const std::string& checkpoint() const { return checkpoint_; }

 private:
  std::string scratch_, checkpoint_;
};

}  // namespace shoal::train
