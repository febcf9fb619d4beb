#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/element_type.h"
#include "shoal/checkpoint/format/box.h"
#include "shoal/checkpoint/format/file.h"

/// The safetensors file format (https://github.com/huggingface/safetensors): 8 bytes of header
/// length, little-endian; a JSON header of tensor names, types, shapes and offsets; the tensors'
/// bytes, without gaps, row-major, little-endian.
namespace shoal::checkpoint::format {

/// One tensor of a safetensors file.
struct Entry {
  std::string name;
  ElementType type = ElementType::kF32;
  Shape shape;
  std::int64_t offset = 0;  ///< offset of its first byte in the file

  std::int64_t bytes() const { return count_of(shape) * static_cast<std::int64_t>(size_of(type)); }
};

struct Header {
  std::vector<Entry> entries;                   ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< `__metadata__`
  std::int64_t data_begin = 0;                  ///< first byte after the header
  std::uint64_t checksum = 0;                   ///< byte_checksum of everything before it

  const Entry* find(std::string_view name) const;  ///< null when there is none
};

/// Reads and checks the header of a whole file: lengths bounded, every type known, every extent
/// inside the file, no gap, no overlap, no byte left over. Throws Error(data) that names the file
/// and what is wrong with it.
Header read_header(const File& file);
/// Parses the header at the beginning of `bytes`, the first bytes of a file of `file_bytes` bytes.
Header parse_header(std::string_view bytes, std::int64_t file_bytes, const std::string& path);

/// Returns the bytes of a header for `entries` in the given order, and sets their offsets; padded
/// with spaces so that the data begins at a multiple of 64. With entries of larger elements first
/// every tensor is aligned to its element. Throws Error(usage) for repeated names or a type that
/// safetensors does not know.
std::string render_header(std::vector<Entry>& entries,
                          const std::map<std::string, std::string>& metadata);

}  // namespace shoal::checkpoint::format
