#include "shoal/train/config/source_weights.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "shoal/checkpoint/format/gguf/model.h"
#include "shoal/checkpoint/format/hugging_face.h"

namespace shoal::train {
namespace {

void remove_folder(const std::string& path) {
  std::error_code error;
  if (!path.empty()) std::filesystem::remove_all(path, error);
}

}  // namespace

SourceWeights::SourceWeights(const ModelSource& source, std::string scratch) {
  using Kind = ModelSource::Kind;
  if (source.kind == Kind::kCheckpoint) {
    checkpoint_ = source.path;
    return;
  }
  try {
    checkpoint_ = source.kind == Kind::kGguf
                      ? checkpoint::format::gguf::import_model(source.path, scratch)
                      : checkpoint::format::import_hugging_face(source.path, scratch);
  } catch (...) {
    remove_folder(scratch);
    throw;
  }
  scratch_ = std::move(scratch);
}

SourceWeights::~SourceWeights() { remove_folder(scratch_); }

}  // namespace shoal::train
