#include "shoal/checkpoint/format/gguf/model.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include "shoal/base/system_error.h"
#include "shoal/checkpoint/format/exported_model.h"
#include "shoal/checkpoint/format/gguf/container.h"
#include "shoal/checkpoint/format/gguf/names.h"
#include "shoal/checkpoint/format/gguf/text.h"
#include "shoal/checkpoint/format/imported_model.h"
#include "shoal/checkpoint/format/strict_json.h"

namespace shoal::checkpoint::format::gguf {
namespace {

std::vector<char> read_values(const File& file, const Tensor& tensor) {
  std::vector<char> blocks(tensor.bytes());
  file.read(blocks.data(), tensor.offset, blocks.size());
  const std::int64_t count = count_of(tensor.shape);
  std::vector<char> values(count * sizeof(float));
  decode(tensor.type, blocks.data(), count, reinterpret_cast<float*>(values.data()));
  return values;
}

/// A file with its header and the model in it.
struct GgufFile {
  explicit GgufFile(const std::string& path)
      : file(File::open(path)), header(read_header(path)), spec(spec_of(header, factors())) {}

  std::vector<float> factors() const {
    const Tensor* tensor = header.find(kRopeFactors);
    if (!tensor) return {};
    const std::vector<char> values = read_values(file, *tensor);
    std::vector<float> factors(values.size() / sizeof(float));
    if (factors.empty())
      throw broken(fmt::format("'{}'", file.path()), fmt::format("'{}' is empty", kRopeFactors));
    std::memcpy(factors.data(), values.data(), values.size());
    return factors;
  }

  File file;
  Header header;
  model::ModelSpec spec;
};

class GgufTensors final : public ForeignTensors {
 public:
  explicit GgufTensors(const GgufFile& file) : file_(file) {}

  ElementType type(const SameTensor& same) const override {
    const std::string where = fmt::format("'{}'", file_.file.path());
    const Tensor* tensor = file_.header.find(same.theirs);
    if (!tensor) throw broken(where, fmt::format("tensor '{}' is missing", same.theirs));
    if (tensor->shape != same.their_shape) {
      throw broken(where, fmt::format("tensor '{}' is {}, its metadata say {}", same.theirs,
                                      text(tensor->shape), text(same.their_shape)));
    }
    return ElementType::kF32;
  }
  std::vector<char> read(const SameTensor& same) override {
    return read_values(file_.file, *file_.header.find(same.theirs));
  }
  void check_no_others(const std::vector<SameTensor>& all) const override {
    std::set<std::string> known{kRopeFactors};
    for (const SameTensor& same : all) known.insert(same.theirs);
    for (const Tensor& tensor : file_.header.tensors) {
      if (!known.contains(tensor.name)) {
        throw broken(fmt::format("'{}'", file_.file.path()),
                     fmt::format("tensor '{}' has no place in the model that its metadata describe",
                                 tensor.name));
      }
    }
  }

 private:
  const GgufFile& file_;
};

BlockType type_in_file(const SameTensor& same, BlockType wanted) {
  // As llama.cpp's own converter has it: these are small, and precision matters in them.
  const bool stays = same.their_shape.size() < 2 || same.theirs == "position_embd.weight" ||
                     same.theirs.ends_with("ffn_gate_inp.weight");
  if (stays) return BlockType::kF32;
  return same.their_shape.back() % block_elements(wanted) == 0 ? wanted : BlockType::kF16;
}

/// The elements of a checkpoint as floats.
std::vector<float> floats(std::vector<char> values, ElementType type) {
  widen_elements(values, type);
  std::vector<float> floats(values.size() / size_of(type));
  if (type == ElementType::kF32) {
    std::memcpy(floats.data(), values.data(), values.size());
  } else if (type == ElementType::kF64) {
    for (std::size_t i = 0; i < floats.size(); ++i) {
      double value;
      std::memcpy(&value, values.data() + i * sizeof value, sizeof value);
      floats[i] = static_cast<float>(value);
    }
  } else {
    throw broken("a parameter", fmt::format("has type {}, which is no float", name(type)));
  }
  return floats;
}

/// Appends blocks of a tensor, and what lies between it and the next one.
void append(File& output, const Tensor& tensor, const std::vector<float>& values) {
  std::vector<char> blocks(tensor.bytes());
  encode(tensor.type, values.data(), static_cast<std::int64_t>(values.size()), blocks.data());
  blocks.resize((blocks.size() + kAlignment - 1) / kAlignment * kAlignment);
  output.append(blocks.data(), blocks.size());
}

void write_file(const std::string& path, const std::string& header, const std::vector<Tensor>& list,
                ExportedTensors& tensors, const std::vector<float>& factors) {
  File output = File::create(path);
  if (!list.empty()) output.reserve(list.back().offset + list.back().bytes());
  output.append(header.data(), header.size());
  for (std::size_t i = 0; i < tensors.all().size(); ++i) {
    const SameTensor& same = tensors.all()[i];
    append(output, list[i], floats(tensors.read(same), tensors.type(same)));
  }
  if (!factors.empty()) append(output, list.back(), factors);
  output.close(true);
}

/// ggml's numbers for what most of a file is.
std::int64_t file_type(BlockType type) {
  switch (type) {
    case BlockType::kF32:
      return 0;
    case BlockType::kF16:
      return 1;
    case BlockType::kBF16:
      return 32;
    default:
      return 7;
  }
}

}  // namespace

model::ModelSpec read_spec(const std::string& path) { return GgufFile(path).spec; }

std::string import_model(const std::string& path, const std::string& directory) {
  const GgufFile file(path);
  GgufTensors tensors(file);
  return write_imported(file.spec, tensors_of(file.spec), tensors, directory);
}

std::string export_model(Reader& from, const std::string& path, const FolderText& text,
                         BlockType type) {
  const model::ModelSpec spec = format::spec_of(from);
  ExportedTensors tensors(from, spec, tensors_of(spec));
  Metadata metadata = metadata_of(spec);
  metadata.add("general.type", std::string("model"));
  metadata.add("general.file_type", file_type(type));
  metadata.add("general.quantization_version", std::int64_t{2});
  const std::string left_out = add_tokenizer(text, spec.vocab, metadata);
  std::vector<Tensor> list;
  for (const SameTensor& same : tensors.all())
    list.push_back({same.theirs, type_in_file(same, type), same.their_shape});
  const std::vector<float> factors = rope_factors(spec);
  if (!factors.empty()) {
    list.push_back({kRopeFactors, BlockType::kF32, {static_cast<std::int64_t>(factors.size())}});
  }
  const std::string header = render_header(metadata, list);
  const std::string partial = path + ".partial";
  try {
    write_file(partial, header, list, tensors, factors);
    if (std::rename(partial.c_str(), path.c_str()) != 0) {
      throw system_error(ErrorKind::kOutput, "checkpoint",
                         fmt::format("cannot rename '{}' to '{}'", partial, path));
    }
  } catch (...) {
    std::error_code error;
    std::filesystem::remove(partial, error);
    throw;
  }
  return left_out;
}

}  // namespace shoal::checkpoint::format::gguf
