#include "shoal/checkpoint/format/hugging_face.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>

#include "shoal/checkpoint/format/exported_model.h"
#include "shoal/checkpoint/format/hugging_face_names.h"
#include "shoal/checkpoint/format/imported_model.h"
#include "shoal/checkpoint/format/safetensors.h"
#include "shoal/checkpoint/format/shard_writer.h"
#include "shoal/checkpoint/format/strict_json.h"
#include "shoal/checkpoint/format/weight_index.h"
#include "shoal/model/model_json.h"

namespace shoal::checkpoint::format {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kLongestText = std::int64_t{100} << 20;
constexpr const char* kConfig = "config.json";
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// The sources of each file, none larger than the limit unless it holds one tensor only.
std::vector<std::vector<Source>> cut_into_files(std::vector<Source> sources,
                                                std::int64_t max_file_bytes) {
  std::vector<std::vector<Source>> files(1);
  std::int64_t bytes = 0;
  for (Source& source : sources) {
    if (!files.back().empty() && bytes + source.bytes() > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += source.bytes();
    files.back().push_back(std::move(source));
  }
  return files;
}

void write_weights(const std::string& folder, const std::vector<std::vector<Source>>& files) {
  json index{{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
  std::int64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        files.size() == 1 ? kWeights
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    write_shard(folder, name, files[i], {{"format", "pt"}}, true);
    for (const Source& source : files[i]) {
      index["weight_map"][source.tensor] = name;
      total += source.bytes();
    }
  }
  index["metadata"]["total_size"] = total;
  if (files.size() > 1) write_text(folder + "/" + kIndex, index.dump(2) + "\n", true);
}

/// Removes the files of an earlier export that a reader would take for a part of this one.
/// config.json goes first: without it the folder is no model.
void remove_earlier(const std::string& folder) {
  for (const char* name :
       {kConfig, kWeights, kIndex, kGenerationConfig, "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "chat_template.jinja"}) {
    std::error_code error;
    fs::remove(fs::path(folder) / name, error);
  }
}

std::string generation_config(const FolderText& text) {
  nlohmann::ordered_json config{{"_from_model_config", true}};
  if (text.begin) config["bos_token_id"] = *text.begin;
  if (text.end) config["eos_token_id"] = *text.end;
  return config.dump(2) + "\n";
}

/// The tensors of a Hugging Face folder, without the prefix that some of its writers leave out.
class FolderTensors final : public ForeignTensors {
 public:
  FolderTensors(const std::string& folder, bool tied) : folder_(folder), tied_(tied) {
    const std::string index = folder + "/" + kIndex;
    if (!fs::exists(index)) {
      open(kWeights);
      return;
    }
    for (const std::string& file :
         files_of_index(read_text(index, kLongestText), fmt::format("'{}'", index)))
      open(file);
  }

  ElementType type(const SameTensor& tensor) const override {
    const auto found = tensors_.find(bare(tensor.theirs));
    if (found == tensors_.end()) {
      throw broken(fmt::format("'{}'", folder_),
                   fmt::format("tensor '{}' is missing", tensor.theirs));
    }
    const auto& [file, entry] = found->second;
    if (entry.shape != tensor.their_shape) {
      throw broken(fmt::format("'{}'", file->path()),
                   fmt::format("tensor '{}' is {}, config.json says {}", tensor.theirs,
                               text(entry.shape), text(tensor.their_shape)));
    }
    const bool narrow = entry.type == ElementType::kF16 || entry.type == ElementType::kBF16;
    return narrow ? ElementType::kF32 : entry.type;
  }

  std::vector<char> read(const SameTensor& tensor) override {
    const auto& [file, entry] = tensors_.at(bare(tensor.theirs));
    std::vector<char> values(entry.bytes());
    file->read(values.data(), entry.offset, values.size());
    ElementType type = entry.type;
    widen_elements(values, type);
    return values;
  }

  void check_no_others(const std::vector<SameTensor>& all) const override {
    std::set<std::string> known;
    for (const SameTensor& same : all) known.insert(bare(same.theirs));
    for (const auto& [name, place] : tensors_) {
      // Masks and rotary frequencies, which transformers stores and recomputes.
      const bool buffer = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
                          name.ends_with("rotary_emb.inv_freq");
      if (!known.contains(name) && !buffer && !(tied_ && name == "lm_head.weight")) {
        throw broken(
            fmt::format("'{}'", place.first->path()),
            fmt::format("tensor '{}' has no place in the model that config.json describes", name));
      }
    }
  }

 private:
  static std::string bare(const std::string& name) {
    constexpr std::string_view kPrefix = "transformer.";
    return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  }
  void open(const std::string& name) {
    const auto file = std::make_shared<File>(File::open(folder_ + "/" + name));
    for (Entry& entry : read_header(*file).entries) {
      const std::string key = bare(entry.name);
      if (!tensors_.emplace(key, std::pair{file, std::move(entry)}).second) {
        throw broken(fmt::format("'{}'", file->path()),
                     fmt::format("tensor '{}' stands twice", key));
      }
    }
  }

  using Place = std::pair<std::shared_ptr<File>, Entry>;
  std::string folder_;
  bool tied_;
  std::map<std::string, Place> tensors_;
};

}  // namespace

void export_hugging_face(Reader& from, const std::string& folder, const FolderText& text,
                         std::int64_t max_file_bytes) {
  const model::ModelSpec spec = spec_of(from);
  const std::string config = hugging_face_config(spec, text.begin, text.end);
  ExportedTensors tensors(from, spec, hugging_face_tensors(spec));
  // Nothing is read yet: each source reads its tensor when its turn to be written comes. The
  // closures refer to `tensors`, which lives until all are written.
  std::vector<Source> sources;
  for (const SameTensor& same : tensors.all()) {
    const ElementType type = tensors.type(same);
    const auto data = [&tensors, &same]() -> const void* { return tensors.read(same).data(); };
    sources.push_back(
        {same.theirs, type, same.their_shape, whole(same.their_shape), blocks_of(type, data)});
  }
  std::error_code error;
  fs::create_directories(folder, error);
  remove_earlier(folder);
  write_weights(folder, cut_into_files(std::move(sources), max_file_bytes));
  for (const auto& [name, content] : text.files) write_text(folder + "/" + name, content, true);
  if (!text.files.contains(kGenerationConfig))
    write_text(folder + "/" + kGenerationConfig, generation_config(text), true);
  write_text(folder + "/" + kConfig, config, true);
}

std::string import_hugging_face(const std::string& folder, const std::string& directory) {
  const std::string config = folder + "/" + kConfig;
  const model::ModelSpec spec = model::from_hugging_face(read_text(config, kLongestText), config);
  FolderTensors tensors(folder, spec.tied_embeddings);
  return write_imported(spec, hugging_face_tensors(spec), tensors, directory);
}

}  // namespace shoal::checkpoint::format
