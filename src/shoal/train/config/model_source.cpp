#include "shoal/train/config/model_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "shoal/checkpoint/format/gguf/container.h"
#include "shoal/checkpoint/format/gguf/model.h"
#include "shoal/checkpoint/format/gguf/text.h"
#include "shoal/checkpoint/format/manifest.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/data/file.h"
#include "shoal/data/hugging_face_tokenizer.h"
#include "shoal/data/manifest.h"
#include "shoal/model/model_json.h"

namespace shoal::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";

/// True for a folder with weights as Hugging Face stores them, and no word of what they are of.
bool has_weights_alone(const std::string& path) {
  if (fs::exists(fs::path(path) / checkpoint::format::kManifestName)) return false;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".safetensors") return true;
  return false;
}

}  // namespace

ModelSource find_model(const std::string& path) {
  using Kind = ModelSource::Kind;
  if (is_gguf(path) && fs::is_regular_file(path)) return {path, Kind::kGguf};
  if (fs::exists(fs::path(path) / kConfig)) return {path, Kind::kHuggingFace};
  if (!fs::exists(path)) {
    throw Error(ErrorKind::kInputMissing, "model", fmt::format("there is no {}", path))
        .hint("name a Hugging Face folder, a GGUF file, a checkpoint, or a run directory");
  }
  if (has_weights_alone(path)) {
    throw Error(ErrorKind::kInputMissing, "model",
                fmt::format("{} has safetensors files and no {}", path, kConfig))
        .hint("download it beside them: it says what the weights are of");
  }
  return {checkpoint::format::resolve_checkpoint(path), Kind::kCheckpoint};
}

model::ModelSpec spec_of(const ModelSource& source) {
  if (source.kind == ModelSource::Kind::kGguf)
    return checkpoint::format::gguf::read_spec(source.path);
  if (source.kind == ModelSource::Kind::kHuggingFace) {
    const std::string config = (fs::path(source.path) / kConfig).string();
    return model::from_hugging_face(data::read_file(config), config);
  }
  const std::string metadata = checkpoint::format::read_manifest(source.path).metadata;
  const auto object = nlohmann::json::parse(metadata, nullptr, false);
  const std::string where = source.path + "/" + checkpoint::format::kManifestName;
  if (!object.is_object() || !object.contains("model"))
    throw Error(ErrorKind::kData, "model", where + " holds no model");
  return model::from_json(object.at("model").dump(), where);
}

std::shared_ptr<const data::Tokenizer> tokenizer_of(const ModelSource& source) {
  if (source.kind == ModelSource::Kind::kGguf) {
    namespace gguf = checkpoint::format::gguf;
    auto files = gguf::tokenizer_files(gguf::read_header(source.path).metadata);
    if (files.empty()) return nullptr;
    return data::hugging_face_tokenizer(std::move(files), source.path);
  }
  if (source.kind == ModelSource::Kind::kHuggingFace) {
    if (!fs::exists(fs::path(source.path) / "tokenizer.json")) return nullptr;
    return data::read_hugging_face_tokenizer(source.path);
  }
  // RUN/checkpoints/step-<n>, or step-<n> in a folder that `shoal ckpt import` wrote.
  const fs::path parent = fs::absolute(source.path).parent_path();
  for (const fs::path& folder : {parent.parent_path(), parent}) {
    if (const fs::path file = folder / data::kTokenizerFile; fs::exists(file))
      return data::load_tokenizer(file.string());
  }
  return nullptr;
}

}  // namespace shoal::train
