#include "shoal/checkpoint/format/imported_model.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

#include "shoal/base/narrow_float.h"
#include "shoal/checkpoint/format/file.h"
#include "shoal/checkpoint/format/shard_writer.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/format/strict_json.h"
#include "shoal/model/model_json.h"

namespace shoal::checkpoint::format {
namespace {

using nlohmann::json;

/// Their tensors that together are one parameter of ours.
using Parts = std::vector<const SameTensor*>;

ElementType type_of(const std::string& parameter, const Parts& parts,
                    const ForeignTensors& tensors) {
  const ElementType type = tensors.type(*parts.front());
  // The parts of a parameter share its memory, so they must have one type.
  for (const SameTensor* part : parts) {
    if (tensors.type(*part) != type)
      throw broken(fmt::format("parameter '{}'", parameter), "its parts have different types");
  }
  return type;
}

/// A run that has not begun: what a training run records, at zero.
std::string metadata(const model::ModelSpec& spec) {
  return json{{"model", json::parse(model::to_json(spec))},
              {"step", 0},
              {"samples", 0},
              {"tokens", 0},
              {"data", 0},
              {"job", ""},
              {"job_file", ""}}
      .dump();
}

}  // namespace

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

std::string write_imported(const model::ModelSpec& spec, const std::vector<SameTensor>& all,
                           ForeignTensors& tensors, const std::string& directory) {
  std::map<std::string, Parts> parts;
  for (const SameTensor& same : all) parts[same.ours].push_back(&same);
  // Nothing is read yet: each source puts its parameter together when its turn to be written comes.
  std::vector<char> ours;
  std::vector<Source> sources;
  for (const auto& parameter : model::parameters(spec)) {
    const Parts& theirs = parts.at(parameter.name);
    const ElementType type = type_of(parameter.name, theirs, tensors);
    const auto data = [&ours, &theirs, &tensors, type, count = parameter.count()] {
      ours.resize(count * static_cast<std::int64_t>(size_of(type)));
      for (const SameTensor* part : theirs) {
        std::vector<char> values = tensors.read(*part);
        move_rows(*part, size_of(type), ours.data(), values.data(), true);
      }
      return static_cast<const void*>(ours.data());
    };
    sources.push_back({"model." + parameter.name, type, parameter.shape, whole(parameter.shape),
                       blocks_of(type, data)});
  }
  // Before anything is written: a model that differs must not become a checkpoint.
  tensors.check_no_others(all);
  const std::string writing = begin_step(directory, 0);
  try {
    Manifest manifest{.step = 0, .metadata = metadata(spec)};
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
