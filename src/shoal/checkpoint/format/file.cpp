#include "shoal/checkpoint/format/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "shoal/base/system_error.h"

namespace shoal::checkpoint::format {
namespace {

constexpr std::size_t kMostPerCall = std::size_t{1}
                                     << 30;  // Linux moves at most 2 GiB less a page in one call

Error reading_failed(const std::string& path) {
  return system_error(ErrorKind::kData, "checkpoint", fmt::format("cannot read '{}'", path));
}
/// Returns how much room is left on the disk of `path`, as the rest of an error's text, where the
/// error `code` is about room; nothing otherwise. `needed`: what the file would take, 0: not known.
std::string room_left(const std::string& path, int code, std::int64_t needed) {
  if (code != ENOSPC && code != EDQUOT) return "";
  std::error_code error;
  const auto disk = std::filesystem::space(std::filesystem::path(path).parent_path(), error);
  if (error) return "";
  const std::string wanted =
      needed > 0 ? fmt::format("; it takes {:.4g} MB", static_cast<double>(needed) / 1e6) : "";
  return wanted +
         fmt::format("; {:.4g} MB are free there", static_cast<double>(disk.available) / 1e6);
}

Error writing_failed(const std::string& path, std::int64_t needed = 0) {
  const int code = errno;
  const Error failure =
      system_error(ErrorKind::kOutput, "checkpoint", fmt::format("cannot write '{}'", path));
  return Error(failure.kind(), failure.operation(),
               failure.message() + room_left(path, code, needed))
      .hint("free space there or name another folder; what was complete there before is as it was");
}

}  // namespace

File File::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    throw system_error(ErrorKind::kInputMissing, "checkpoint",
                       fmt::format("cannot open '{}'", path));
  }
  if (descriptor < 0) throw reading_failed(path);
  File file(path, descriptor, 0);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) throw reading_failed(path);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorKind::kInputMissing, "checkpoint",
                fmt::format("'{}' is not a plain file", path));
  }
  file.bytes_ = status.st_size;
  return file;
}

File File::create(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) throw writing_failed(path);
  File file(path, descriptor, 0);
  // The File owns the descriptor; DirectOutput writes to it and must be gone before it is closed.
  file.output_ = std::make_unique<DirectOutput>(descriptor);
  return file;
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_),
      output_(std::move(other.output_)) {}

File::~File() {
  output_.reset();  // waits for what is on its way
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::read(void* data, std::int64_t offset, std::size_t count) const {
  auto* out = static_cast<char*>(data);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, out, std::min(count, kMostPerCall), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw reading_failed(path_);
    if (got == 0) {
      throw Error(ErrorKind::kData, "checkpoint",
                  fmt::format("'{}' ends at byte {}, {} bytes too early", path_, offset, count));
    }
    out += got;
    offset += got;
    count -= got;
  }
}

void File::reserve(std::int64_t bytes) {
  // Not every file system can reserve; there a full disk shows while writing.
  if (::fallocate(descriptor_, 0, 0, bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
      errno != EINTR)
    throw writing_failed(path_, bytes);
}

void File::append(const void* data, std::size_t count) {
  if (!output_->append(data, count)) throw writing_failed(path_);
  bytes_ += static_cast<std::int64_t>(count);
}

void File::close(bool sync) {
  // The rest is written first, then synced: fsync also reports errors of earlier writes that the
  // system has delayed.
  if (!output_->finish() || (sync && ::fsync(descriptor_) != 0)) throw writing_failed(path_);
  output_.reset();
  // The descriptor is gone whatever close returns; some file systems report a full disk only here.
  if (::close(std::exchange(descriptor_, -1)) != 0) throw writing_failed(path_);
}

std::string read_text(const std::string& path, std::int64_t limit) {
  const File file = File::open(path);
  if (file.bytes() > limit) {
    throw Error(ErrorKind::kData, "checkpoint",
                fmt::format("'{}' has {} bytes, more than the {} that it may have", path,
                            file.bytes(), limit));
  }
  std::string text(file.bytes(), '\0');
  file.read(text.data(), 0, text.size());
  return text;
}

void write_text(const std::string& path, const std::string& text, bool sync) {
  File file = File::create(path);
  file.append(text.data(), text.size());
  file.close(sync);
}

}  // namespace shoal::checkpoint::format
