#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace shoal::apps {

/// The contents of a file that storage can neither compress nor share with another file: a chunk of
/// pseudorandom numbers over and over, in which each block of kBlockBytes begins with a number that
/// follows from its place and from the stream. Only these numbers change from chunk to chunk, so
/// that the disk is timed and not their computation.
class StoragePattern {
 public:
  /// Storage finds equal data in blocks that are as large or larger.
  static constexpr std::int64_t kBlockBytes = 4096;

  /// `chunk_bytes`: a multiple of kBlockBytes. `stream`: another one for each file.
  StoragePattern(std::int64_t chunk_bytes, std::uint64_t stream);

  /// Puts the bytes that stand at `offset` of the file, a multiple of kBlockBytes, into the chunk.
  void move_to(std::int64_t offset);
  /// Returns where in the file the first block stands that does not begin as it must; nothing where
  /// all do. The chunk holds `bytes` bytes that were read at `offset`.
  std::optional<std::int64_t> first_wrong(std::int64_t offset, std::int64_t bytes) const;
  void* data() { return chunk_.data(); }

 private:
  std::vector<std::uint64_t> chunk_;
  std::uint64_t stream_;
};

}  // namespace shoal::apps
