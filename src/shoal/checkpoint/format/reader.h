#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shoal/checkpoint/format/file.h"
#include "shoal/checkpoint/format/manifest.h"
#include "shoal/checkpoint/format/safetensors.h"

namespace shoal::checkpoint::format {

/// Reads any box of any tensor of a checkpoint, whatever boxes it was saved in, verifying every
/// block that it touches. Errors: Error(data) that names file, tensor and what is wrong. Threads:
/// one at a time.
class Reader {
 public:
  /// Opens the manifest of the checkpoint in folder `path`; data files are opened when needed and
  /// their headers held to the manifest.
  explicit Reader(std::string path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  /// Reads `box` of `tensor` (one of the manifest's) into `data`, row-major.
  void read(const LogicalTensor& tensor, const Box& box, void* data);
  /// Returns the bytes of the whole tensor.
  std::vector<char> read(const LogicalTensor& tensor);

  /// Reads everything and checks it. `progress` is called after each piece with the bytes read so
  /// far.
  void verify(const std::function<void(std::int64_t)>& progress = {});
  /// Returns the bytes of tensors that were read from files.
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct DataFileInUse {
    File file;
    Header header;
  };
  /// The place of a piece's elements.
  struct Place {
    const File* file;
    std::int64_t offset;
  };

  const DataFileInUse& file(int index);
  Place place(const LogicalTensor& tensor, const Piece& piece);
  void read_block(const LogicalTensor& tensor, const Piece& piece, const Place& place,
                  std::int64_t block, void* data);
  void copy_shared(const LogicalTensor& tensor, const Piece& piece, const Box& box, char* data);

  std::string path_;
  Manifest manifest_;
  std::vector<std::unique_ptr<DataFileInUse>> files_;
  std::vector<char> buffer_;
  std::int64_t bytes_read_ = 0;
};

}  // namespace shoal::checkpoint::format
