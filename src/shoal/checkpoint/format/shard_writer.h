#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shoal/checkpoint/format/manifest.h"

namespace shoal::checkpoint::format {

/// Returns elements `[begin, end)` of a box, row-major: a block of kBlockElements or the rest. It
/// is called once for each block, in order, source by source; the memory that it returns is valid
/// until the next call. An exception of it ends the writing.
using BlockReader = std::function<const void*(std::int64_t begin, std::int64_t end)>;

/// A box of a logical tensor on its way into a file.
struct Source {
  std::string tensor;
  ElementType type = ElementType::kF32;
  Shape shape;  ///< shape of the whole tensor
  Box box;
  BlockReader block;

  std::int64_t bytes() const { return box.count() * static_cast<std::int64_t>(size_of(type)); }
};

/// Returns a reader of elements that lie in memory one after the other. `data` is called once, when
/// the first block is read; the memory is valid until the next source is read.
BlockReader blocks_of(ElementType type, std::function<const void*()> data);

/// The result of writing: the files, and every logical tensor with the pieces that came from here
/// (Piece::file counts within `files`).
struct Written {
  std::vector<DataFile> files;
  std::vector<LogicalTensor> tensors;
};

/// Writes `sources` into safetensors files `<folder>/<stem>-<k>.safetensors`, k from 0, beginning
/// another when one would exceed `max_file_bytes`; a checksum is taken of every block on its way.
/// Throws Error(output).
Written write_shards(const std::string& folder, const std::string& stem,
                     std::vector<Source> sources, std::int64_t max_file_bytes, bool sync);

/// Writes one file of these sources, in this order. write_shards calls it for each of its files;
/// exports call it with a name and metadata of their own.
Written write_shard(const std::string& folder, const std::string& file_name,
                    const std::vector<Source>& sources,
                    const std::map<std::string, std::string>& metadata, bool sync);

/// Appends `part` to `manifest`, with its file indices moved up.
void add_written(Manifest& manifest, Written part);

}  // namespace shoal::checkpoint::format
