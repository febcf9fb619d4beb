#include "shoal/checkpoint/format/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "shoal/base/check.h"
#include "shoal/checkpoint/format/file.h"
#include "shoal/checkpoint/format/safetensors.h"
#include "shoal/checkpoint/format/value_checksum.h"

namespace shoal::checkpoint::format {
namespace {

/// Writes the elements of one source while each block is in the cache from its checksum.
Piece write_piece(File& file, const Source& source, const std::string& name) {
  Piece piece{.file = 0, .name = name, .box = source.box};
  const std::int64_t count = source.box.count();
  const std::int64_t element = static_cast<std::int64_t>(size_of(source.type));
  for (std::int64_t begin = 0; begin < count; begin += kBlockElements) {
    const std::int64_t end = std::min(begin + kBlockElements, count);
    const void* block = source.block(begin, end);
    piece.blocks.push_back(
        value_checksum(block, source.type, source.box, source.shape, begin, end));
    file.append(block, static_cast<std::size_t>((end - begin) * element));
  }
  return piece;
}

void add_piece(std::vector<LogicalTensor>& tensors, const Source& source, Piece piece) {
  if (tensors.empty() || tensors.back().name != source.tensor)
    tensors.push_back({source.tensor, source.type, source.shape, {}});
  tensors.back().pieces.push_back(std::move(piece));
}

/// Joins the parts of a tensor that several writers wrote.
void merge_equal_names(std::vector<LogicalTensor>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const LogicalTensor& a, const LogicalTensor& b) { return a.name < b.name; });
  std::vector<LogicalTensor> merged;
  for (LogicalTensor& tensor : tensors) {
    if (merged.empty() || merged.back().name != tensor.name) {
      merged.push_back(std::move(tensor));
      continue;
    }
    LogicalTensor& first = merged.back();
    SHOAL_USER_CHECK(first.shape == tensor.shape && first.type == tensor.type, "checkpoint",
                     "ranks disagree on tensor '{}': {} {} and {} {}", first.name, name(first.type),
                     text(first.shape), name(tensor.type), text(tensor.shape));
    std::move(tensor.pieces.begin(), tensor.pieces.end(), std::back_inserter(first.pieces));
  }
  tensors = std::move(merged);
}

}  // namespace

BlockReader blocks_of(ElementType type, std::function<const void*()> data) {
  return [size = static_cast<std::int64_t>(size_of(type)), data = std::move(data),
          at = static_cast<const char*>(nullptr)](std::int64_t begin,
                                                  std::int64_t) mutable -> const void* {
    if (!at) at = static_cast<const char*>(data());
    return at + begin * size;
  };
}

Written write_shard(const std::string& folder, const std::string& file_name,
                    const std::vector<Source>& sources,
                    const std::map<std::string, std::string>& metadata, bool sync) {
  std::vector<Entry> entries;
  for (const Source& source : sources) {
    entries.push_back({.name = piece_name(source.tensor, source.box, source.shape),
                       .type = source.type,
                       .shape = source.box.shape()});
  }
  // All sizes are known beforehand, so the header is written first and never again: the file is
  // only appended to.
  const std::string header = render_header(entries, metadata);
  File file = File::create(folder + "/" + file_name);
  if (!entries.empty()) file.reserve(entries.back().offset + entries.back().bytes());
  file.append(header.data(), header.size());
  Written written;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    SHOAL_CHECK(file.bytes() == entries[i].offset, "'{}' is written at {}, its header says {}",
                entries[i].name, file.bytes(), entries[i].offset);
    add_piece(written.tensors, sources[i], write_piece(file, sources[i], entries[i].name));
  }
  file.close(sync);
  written.files.push_back({file_name, file.bytes(), byte_checksum(header)});
  return written;
}

Written write_shards(const std::string& folder, const std::string& stem,
                     std::vector<Source> sources, std::int64_t max_file_bytes, bool sync) {
  Written all;
  const auto add = [&](Written part) {
    for (LogicalTensor& tensor : part.tensors) {
      for (Piece& piece : tensor.pieces) piece.file = static_cast<int>(all.files.size());
      all.tensors.push_back(std::move(tensor));
    }
    std::move(part.files.begin(), part.files.end(), std::back_inserter(all.files));
  };
  for (auto begin = sources.begin(); begin != sources.end();) {
    std::int64_t bytes = 0;
    auto end = begin;
    do bytes += (end++)->bytes();
    while (end != sources.end() && bytes + end->bytes() <= max_file_bytes);
    // Larger elements first: every tensor is then aligned to its elements without a gap.
    std::stable_sort(begin, end, [](const Source& a, const Source& b) {
      return size_of(a.type) > size_of(b.type);
    });
    add(write_shard(folder, fmt::format("{}-{:02}.safetensors", stem, all.files.size()),
                    {begin, end}, {{"format", "pt"}}, sync));
    begin = end;
  }
  merge_equal_names(all.tensors);
  return all;
}

void add_written(Manifest& manifest, Written part) {
  const int before = static_cast<int>(manifest.files.size());
  std::move(part.files.begin(), part.files.end(), std::back_inserter(manifest.files));
  for (LogicalTensor& tensor : part.tensors) {
    // Each rank counts its own files from 0.
    for (Piece& piece : tensor.pieces) piece.file += before;
    manifest.tensors.push_back(std::move(tensor));
  }
  merge_equal_names(manifest.tensors);
}

}  // namespace shoal::checkpoint::format
