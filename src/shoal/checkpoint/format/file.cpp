#include "shoal/checkpoint/format/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "shoal/base/system_error.h"

namespace shoal::checkpoint::format {
namespace {

constexpr std::int64_t kStartWritingEvery = std::int64_t{32} << 20;
constexpr std::size_t kMostPerCall = std::size_t{1} << 30;  // Linux moves at most 2 GiB less a page in one call

Error reading_failed(const std::string& path) { return system_error(ErrorKind::kData, "checkpoint", fmt::format("cannot read '{}'", path)); }
Error writing_failed(const std::string& path) {
  return system_error(ErrorKind::kOutput, "checkpoint", fmt::format("cannot write '{}'", path))
      .hint("free space there or name another folder; checkpoints that were complete before are as they were");
}

}  // namespace

File File::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && (errno == ENOENT || errno == ENOTDIR))
    throw system_error(ErrorKind::kInputMissing, "checkpoint", fmt::format("cannot open '{}'", path));
  if (descriptor < 0) throw reading_failed(path);
  File file(path, descriptor, 0);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) throw reading_failed(path);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorKind::kInputMissing, "checkpoint", fmt::format("'{}' is not a plain file", path));
  file.bytes_ = status.st_size;
  return file;
}

File File::create(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) throw writing_failed(path);
  return File(path, descriptor, 0);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_), started_(other.started_) {}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::read(void* data, std::int64_t offset, std::size_t count) const {
  auto* out = static_cast<char*>(data);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, out, std::min(count, kMostPerCall), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw reading_failed(path_);
    if (got == 0) throw Error(ErrorKind::kData, "checkpoint", fmt::format("'{}' ends at byte {}, {} bytes too early", path_, offset, count));
    out += got, offset += got, count -= got;
  }
}

void File::append(const void* data, std::size_t count) {
  const auto* in = static_cast<const char*>(data);
  while (count > 0) {
    const ssize_t put = ::write(descriptor_, in, std::min(count, kMostPerCall));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw writing_failed(path_);
    in += put, count -= put, bytes_ += put;
  }
  if (bytes_ - started_ >= kStartWritingEvery) {
    // Only advice: where it is not supported the sync at the end does all the work.
    ::sync_file_range(descriptor_, started_, bytes_ - started_, SYNC_FILE_RANGE_WRITE);
    started_ = bytes_;
  }
}

void File::sync() {
  if (::fsync(descriptor_) != 0) throw writing_failed(path_);
}

void File::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) throw writing_failed(path_);
}

std::string read_text(const std::string& path, std::int64_t limit) {
  const File file = File::open(path);
  if (file.bytes() > limit)
    throw Error(ErrorKind::kData, "checkpoint", fmt::format("'{}' has {} bytes, more than the {} that it may have", path, file.bytes(), limit));
  std::string text(file.bytes(), '\0');
  file.read(text.data(), 0, text.size());
  return text;
}

void write_text(const std::string& path, const std::string& text, bool sync) {
  File file = File::create(path);
  file.append(text.data(), text.size());
  if (sync) file.sync();
  file.close();
}

}  // namespace shoal::checkpoint::format
