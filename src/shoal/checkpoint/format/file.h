#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "shoal/checkpoint/format/direct_output.h"

namespace shoal::checkpoint::format {

/// An open file that closes itself. Every failure is an Error that names the path and the system's
/// words. Threads: reading from several at once is fine.
class File {
 public:
  /// Throws Error(input missing) when it does not exist or is no plain file, Error(data) when it
  /// cannot be opened.
  static File open(const std::string& path);
  /// Creates a file, or empties an old one. Throws Error(output).
  static File create(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) = delete;
  ~File();

  const std::string& path() const { return path_; }
  std::int64_t bytes() const {
    return bytes_;
  }  ///< size when opened; what has been written so far when created

  /// Reads exactly `count` bytes at `offset`. Throws Error(data) when the file ends before or the
  /// disk fails.
  void read(void* data, std::int64_t offset, std::size_t count) const;
  /// Takes room for `bytes` on the disk, so that a full disk shows before anything is written. Does
  /// nothing on file systems that cannot reserve. Throws Error(output).
  void reserve(std::int64_t bytes);
  /// Appends, past the page cache where that is possible. Failures may show in a later call. Throws
  /// Error(output).
  void append(const void* data, std::size_t count);
  /// Hands everything to the system and closes the file. With `sync` it returns when everything is
  /// on the disk. Throws Error(output).
  void close(bool sync);

 private:
  File(std::string path, int descriptor, std::int64_t bytes)
      : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {}

  std::string path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
  std::unique_ptr<DirectOutput> output_;  ///< a created file is written through it
};

/// Returns the contents of a text file of at most `limit` bytes. Throws as File::open and
/// File::read.
std::string read_text(const std::string& path, std::int64_t limit);
/// Throws Error(output).
void write_text(const std::string& path, const std::string& text, bool sync);

}  // namespace shoal::checkpoint::format
