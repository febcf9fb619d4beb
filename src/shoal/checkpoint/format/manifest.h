#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/element_type.h"
#include "shoal/checkpoint/format/box.h"

/// A checkpoint is a folder with `manifest.json` and safetensors files. The manifest says
/// which box of which logical tensor lies where, with a checksum for every block of elements; a
/// piece's name in its file is the tensor's, followed by its box unless it is whole.
namespace shoal::checkpoint::format {

inline constexpr const char* kManifestName = "manifest.json";
/// A piece is checked in blocks of this many elements, so that what reads a part of it verifies
/// just that part.
inline constexpr std::int64_t kBlockElements = std::int64_t{1} << 20;

/// A box of a logical tensor in one file.
struct Piece {
  int file = 0;      ///< index into Manifest::files
  std::string name;  ///< in that file
  Box box;
  std::vector<std::uint64_t>
      blocks;  ///< value_checksum of every kBlockElements elements, the last block shorter

  std::uint64_t checksum() const;  ///< checksum of the values of the piece
};

/// A tensor of the training state as if there were one device.
struct LogicalTensor {
  std::string name;
  ElementType type = ElementType::kF32;
  Shape shape;
  std::vector<Piece> pieces;  ///< disjoint; together the whole tensor

  std::int64_t bytes() const { return count_of(shape) * static_cast<std::int64_t>(size_of(type)); }
  std::uint64_t checksum() const;  ///< checksum of the values, however they are sharded
};

struct DataFile {
  std::string name;
  std::int64_t bytes = 0;
  std::uint64_t header_checksum = 0;
};

struct Manifest {
  std::int64_t step = 0;
  std::vector<DataFile> files;
  std::vector<LogicalTensor> tensors;  ///< by name
  std::string metadata = "{}";         ///< a JSON object

  const LogicalTensor* find(std::string_view name) const;  ///< null when there is none
};

/// Returns the name of a piece in its file: "blocks.0.mlp.up.weight", or
/// "blocks.0.mlp.up.weight[0:64, 0:128]" for a part of the tensor.
std::string piece_name(std::string_view tensor, const Box& box, const Shape& shape);

/// Returns an empty text when the pieces cover the tensor exactly once, else what is wrong.
std::string coverage_fault(const LogicalTensor& tensor);

/// Throws Error(usage) when `metadata` is no JSON object, or a tensor is not covered exactly once.
/// Sorts the tensors.
std::string to_json(Manifest& manifest);
/// Throws Error(data) that begins with `path` unless the text is a manifest in which everything
/// fits together, with the checksum that it states.
Manifest parse_manifest(const std::string& json, const std::string& path);
/// Reads the manifest of the checkpoint in folder `checkpoint`. Throws Error(input missing) when
/// there is none, Error(data) when it is broken.
Manifest read_manifest(const std::string& checkpoint);

}  // namespace shoal::checkpoint::format
