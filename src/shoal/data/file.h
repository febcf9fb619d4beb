#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "shoal/base/clock.h"

namespace shoal::data {

/// Returns the CRC-32 (ISO 3309, as in zlib and gzip) of `bytes`, continuing from `before`.
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

/// Reads a whole file. Throws Error(input missing) when it is not there, Error(data) when it cannot
/// be read.
std::string read_file(const std::string& path);

/// Writes `bytes` to a file beside `path`, flushes it to the disk and renames it over `path`: a
/// reader, or a run after a crash, sees the old file or the whole new one. Throws Error(output).
void write_file(const std::string& path, std::string_view bytes);

/// A file mapped for reading. Movable; the view lives as long as the object.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error(input missing) when the file is not there, Error(data) when it cannot be mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// An advisory lock on a file, held until destruction and given up by the kernel when the process
/// dies.
class FileLock {
 public:
  /// Waits up to `patience` for another process that holds the lock. Throws Error(output) after
  /// that, and when the file cannot be made.
  explicit FileLock(const std::string& path, Duration patience = {});
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace shoal::data
