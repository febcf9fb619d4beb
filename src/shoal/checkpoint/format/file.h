#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace shoal::checkpoint::format {

/// An open file that closes itself. Every failure is an Error that names the path and the system's words.
/// Threads: reading from several at once is fine.
class File {
 public:
  /// Throws Error(input missing) when it does not exist or is no plain file, Error(data) when it cannot be opened.
  static File open(const std::string& path);
  /// A new file, or an old one emptied. Throws Error(output).
  static File create(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) = delete;
  ~File();

  const std::string& path() const { return path_; }
  std::int64_t bytes() const { return bytes_; }  ///< size when opened; what has been written so far when created

  /// Reads exactly `count` bytes at `offset`. Throws Error(data) when the file ends before or the disk fails.
  void read(void* data, std::int64_t offset, std::size_t count) const;
  /// Appends; lets the kernel begin to write to the disk behind it. Throws Error(output).
  void append(const void* data, std::size_t count);
  /// Returns when all is on the disk. Throws Error(output).
  void sync();
  /// Closes what was written; some file systems tell of a full disk only now. Throws Error(output).
  void close();

 private:
  File(std::string path, int descriptor, std::int64_t bytes) : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {}

  std::string path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0, started_ = 0;  // started_: the kernel was told to write up to here
};

/// The whole of a text file of at most `limit` bytes. Throws as File::open and File::read.
std::string read_text(const std::string& path, std::int64_t limit);
/// Throws Error(output).
void write_text(const std::string& path, const std::string& text, bool sync);

}  // namespace shoal::checkpoint::format
