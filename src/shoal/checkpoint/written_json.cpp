#include "shoal/checkpoint/written_json.h"

#include <nlohmann/json.hpp>

namespace shoal::checkpoint {

using nlohmann::json;

std::string to_json(const RankPart& part) {
  const format::Written& written = part.written;
  json files = json::array();
  json tensors = json::array();
  for (const format::DataFile& file : written.files)
    files.push_back({file.name, file.bytes, file.header_checksum});
  for (const format::LogicalTensor& tensor : written.tensors) {
    json pieces = json::array();
    for (const format::Piece& piece : tensor.pieces)
      pieces.push_back({piece.file, piece.name, piece.box.begin, piece.box.end, piece.blocks});
    tensors.push_back(
        {tensor.name, static_cast<int>(tensor.type), tensor.shape, std::move(pieces)});
  }
  return json{std::move(files), std::move(tensors), part.left}.dump();
}

// The text comes from a rank of the same program and is not checked; manifests, which may come from
// anywhere, are.
RankPart part_from_json(const std::string& text) {
  const json root = json::parse(text);
  format::Written written;
  for (const json& file : root.at(0)) written.files.push_back({file.at(0), file.at(1), file.at(2)});
  for (const json& value : root.at(1)) {
    format::LogicalTensor tensor{
        value.at(0), static_cast<ElementType>(value.at(1).get<int>()), value.at(2), {}};
    for (const json& piece : value.at(3))
      tensor.pieces.push_back({piece.at(0), piece.at(1), {piece.at(2), piece.at(3)}, piece.at(4)});
    written.tensors.push_back(std::move(tensor));
  }
  return {std::move(written), root.at(2)};
}

}  // namespace shoal::checkpoint
