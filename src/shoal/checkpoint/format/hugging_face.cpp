#include "shoal/checkpoint/format/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include "shoal/base/narrow_float.h"
#include "shoal/base/system_error.h"
#include "shoal/checkpoint/format/hugging_face_names.h"
#include "shoal/checkpoint/format/shard_writer.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/format/strict_json.h"
#include "shoal/checkpoint/format/weight_index.h"
#include "shoal/model/model_json.h"

namespace shoal::checkpoint::format {
namespace {

using nlohmann::json;

constexpr std::int64_t kLongestText = std::int64_t{100} << 20;

/// Moves rows between their matrix and ours: `to_ours` says which way.
void move_rows(const SameTensor& same, std::size_t element, char* ours, char* theirs,
               bool to_ours) {
  const auto rows = static_cast<std::int64_t>(same.rows.size());
  const std::int64_t columns = count_of(same.their_shape) / std::max<std::int64_t>(rows, 1);
  const auto move = [&](char* mine, char* other, std::size_t bytes) {
    to_ours ? std::memcpy(mine, other, bytes) : std::memcpy(other, mine, bytes);
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    char* mine = ours + same.rows[row] * columns * element;
    if (!same.transposed) {
      move(mine, theirs + row * columns * element, columns * element);
      continue;
    }
    for (std::int64_t column = 0; column < columns; ++column)
      move(mine + column * element, theirs + (column * rows + row) * element, element);
  }
}

const LogicalTensor& parameter_of(const Reader& reader, const model::ParameterSpec& expected) {
  const LogicalTensor* tensor = reader.manifest().find("model." + expected.name);
  if (!tensor || tensor->shape != expected.shape) {
    throw broken(
        fmt::format("'{}'", reader.path()),
        fmt::format("{} 'model.{}' of {}", tensor ? "has another shape for" : "has no tensor",
                    expected.name, text(expected.shape)));
  }
  return *tensor;
}

model::ModelSpec spec_of(const Reader& reader) {
  const std::string where = fmt::format("'{}': metadata", reader.path());
  return model::from_json(
      field(parse_json(reader.manifest().metadata, where), "model", where).dump(),
      reader.path() + "/" + kManifestName);
}

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

void write_files(const std::string& folder, const std::vector<std::vector<Source>>& files) {
  json index{{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
  std::int64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        files.size() == 1 ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    write_shard(folder, name, files[i], {{"format", "pt"}}, true);
    for (const Source& source : files[i]) {
      index["weight_map"][source.tensor] = name;
      total += source.bytes();
    }
  }
  index["metadata"]["total_size"] = total;
  if (files.size() > 1)
    write_text(folder + "/model.safetensors.index.json", index.dump(2) + "\n", true);
}

/// The tensors of a Hugging Face folder, without the prefix that some of its writers leave out.
class Foreign {
 public:
  explicit Foreign(const std::string& folder) : folder_(folder) {
    const std::string index = folder + "/model.safetensors.index.json";
    if (!std::filesystem::exists(index)) {
      open("model.safetensors");
      return;
    }
    for (const std::string& file :
         files_of_index(read_text(index, kLongestText), fmt::format("'{}'", index)))
      open(file);
  }

  /// The values of a tensor as they are stored; `type` becomes theirs. Throws Error(data) when it
  /// is missing or has another shape.
  std::vector<char> read(const std::string& name, const Shape& shape, ElementType& type) {
    const auto found = tensors_.find(bare(name));
    if (found == tensors_.end())
      throw broken(fmt::format("'{}'", folder_), fmt::format("tensor '{}' is missing", name));
    const auto& [file, entry] = found->second;
    if (entry.shape != shape) {
      throw broken(fmt::format("'{}'", file->path()),
                   fmt::format("tensor '{}' is {}, config.json says {}", name, text(entry.shape),
                               text(shape)));
    }
    std::vector<char> values(entry.bytes());
    file->read(values.data(), entry.offset, values.size());
    type = entry.type;
    used_.insert(*found);
    return values;
  }

  /// Throws Error(data) when a parameter was not read: the model is another than config.json says.
  void check_all_used(bool tied) const {
    for (const auto& [name, place] : tensors_) {
      // Masks and rotary frequencies, which transformers stores and recomputes.
      const bool buffer = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
                          name.ends_with("rotary_emb.inv_freq");
      if (!used_.contains(name) && !buffer && !(tied && name == "lm_head.weight")) {
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
  std::map<std::string, Place> tensors_, used_;
};

/// Turns elements of f16 or bf16 into f32, exactly; `type` becomes f32. Others stay as they are.
void widen_elements(std::vector<char>& values, ElementType& type) {
  if (type != ElementType::kF16 && type != ElementType::kBF16) return;
  const std::size_t count = values.size() / 2;
  std::vector<char> wide(count * 4);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, values.data() + 2 * i, 2);
    const float value = type == ElementType::kF16 ? widen(Float16{bits}) : widen(BFloat16{bits});
    std::memcpy(wide.data() + 4 * i, &value, 4);
  }
  values = std::move(wide);
  type = ElementType::kF32;
}

/// One parameter of ours, put together from theirs, in f32 unless it is wider.
std::pair<ElementType, std::vector<char>> gather_parameter(Foreign& foreign,
                                                           const model::ParameterSpec& parameter,
                                                           const std::vector<SameTensor>& all) {
  ElementType type = ElementType::kF32;
  std::vector<char> ours;
  for (const SameTensor& same : all) {
    if (same.ours != parameter.name) continue;
    ElementType stored = type;
    std::vector<char> theirs = foreign.read(same.theirs, same.their_shape, stored);
    widen_elements(theirs, stored);
    // The parts of a parameter share its memory, so they must have one type.
    if (!ours.empty() && stored != type)
      throw broken(fmt::format("parameter '{}'", parameter.name), "its parts have different types");
    type = stored;
    ours.resize(parameter.count() * static_cast<std::int64_t>(size_of(type)));
    move_rows(same, size_of(type), ours.data(), theirs.data(), true);
  }
  return {type, std::move(ours)};
}

}  // namespace

void export_hugging_face(Reader& from, const std::string& folder, std::int64_t max_file_bytes) {
  const model::ModelSpec spec = spec_of(from);
  const std::vector<SameTensor> all = hugging_face_tensors(spec);
  const std::string config = hugging_face_config(spec);
  std::map<std::string, const LogicalTensor*> ours;
  for (const auto& parameter : model::parameters(spec))
    ours[parameter.name] = &parameter_of(from, parameter);
  // Queries, keys and values come from one tensor: the last one read is kept.
  struct Buffers {
    std::string name;
    std::vector<char> ours, theirs;
  } buffers;
  // Nothing is read yet: each source reads its tensor when its turn to be written comes. The
  // closures refer to `all` and `buffers`, which live until all are written.
  std::vector<Source> sources;
  for (const SameTensor& same : all) {
    const LogicalTensor* tensor = ours.at(same.ours);
    const auto data = [&from, &buffers, &same, tensor]() -> const void* {
      if (buffers.name != same.ours) {
        buffers.ours = from.read(*tensor);
        buffers.name = same.ours;
      }
      buffers.theirs.resize(count_of(same.their_shape) * size_of(tensor->type));
      move_rows(same, size_of(tensor->type), buffers.ours.data(), buffers.theirs.data(), false);
      return buffers.theirs.data();
    };
    sources.push_back({same.theirs, tensor->type, same.their_shape, whole(same.their_shape),
                       blocks_of(tensor->type, data)});
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  write_files(folder, cut_into_files(std::move(sources), max_file_bytes));
  write_text(folder + "/config.json", config, true);
}

std::string import_hugging_face(const std::string& folder, const std::string& directory) {
  const std::string config = folder + "/config.json";
  const model::ModelSpec spec = model::from_hugging_face(read_text(config, kLongestText), config);
  const std::vector<SameTensor> all = hugging_face_tensors(spec);
  Foreign foreign(folder);
  const std::string writing = begin_step(directory, 0);
  try {
    // A run that has not begun: what a training run records, at zero.
    const json metadata{{"model", json::parse(model::to_json(spec))},
                        {"step", 0},
                        {"samples", 0},
                        {"tokens", 0},
                        {"data", 0},
                        {"job", ""},
                        {"job_file", ""}};
    Manifest manifest{.step = 0, .metadata = metadata.dump()};
    std::vector<Source> sources;
    std::vector<std::vector<char>> values;
    for (const auto& parameter : model::parameters(spec)) {
      auto [type, data] = gather_parameter(foreign, parameter, all);
      values.push_back(std::move(data));
      // The pointer stays valid when `values` grows: moving a vector leaves its elements where they
      // are.
      sources.push_back({"model." + parameter.name, type, parameter.shape, whole(parameter.shape),
                         blocks_of(type, [pointer = values.back().data()] { return pointer; })});
    }
    // Before anything is written: a model that differs must not become a checkpoint.
    foreign.check_all_used(spec.tied_embeddings);
    add_written(manifest, write_shards(writing, "shard-0000", std::move(sources),
                                       std::int64_t{4} << 30, true));
    write_text(writing + "/" + kManifestName, to_json(manifest), true);
    return commit_step(directory, 0, true);
  } catch (...) {
    abandon_step(directory, 0);
    throw;
  }
}

}  // namespace shoal::checkpoint::format
