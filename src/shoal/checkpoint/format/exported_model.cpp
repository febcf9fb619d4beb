#include "shoal/checkpoint/format/exported_model.h"

#include <fmt/format.h>

#include "shoal/checkpoint/format/strict_json.h"
#include "shoal/model/model_json.h"

namespace shoal::checkpoint::format {

model::ModelSpec spec_of(const Reader& reader) {
  const std::string where = fmt::format("'{}': metadata", reader.path());
  return model::from_json(
      field(parse_json(reader.manifest().metadata, where), "model", where).dump(),
      reader.path() + "/" + kManifestName);
}

ExportedTensors::ExportedTensors(Reader& from, const model::ModelSpec& spec,
                                 std::vector<SameTensor> all)
    : from_(from), all_(std::move(all)) {
  for (const auto& parameter : model::parameters(spec)) {
    const LogicalTensor* tensor = from.manifest().find("model." + parameter.name);
    if (!tensor || tensor->shape != parameter.shape) {
      throw broken(
          fmt::format("'{}'", from.path()),
          fmt::format("{} 'model.{}' of {}", tensor ? "has another shape for" : "has no tensor",
                      parameter.name, text(parameter.shape)));
    }
    ours_[parameter.name] = tensor;
  }
}

const std::vector<char>& ExportedTensors::read(const SameTensor& tensor) {
  if (last_name_ != tensor.ours) {
    last_ = from_.read(*ours_.at(tensor.ours));
    last_name_ = tensor.ours;
  }
  const std::size_t element = size_of(type(tensor));
  theirs_.resize(count_of(tensor.their_shape) * static_cast<std::int64_t>(element));
  move_rows(tensor, element, last_.data(), theirs_.data(), false);
  return theirs_;
}

}  // namespace shoal::checkpoint::format
