#include "shoal/data/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <thread>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/system_error.h"

namespace shoal::data {
namespace {

/// Closes a descriptor at the end of a scope.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

std::size_t open_for_reading(const std::string& path, Descriptor& file) {
  file.value = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file.value < 0) {
    throw system_error(errno == ENOENT ? ErrorKind::kInputMissing : ErrorKind::kData, "data",
                       "cannot open " + path);
  }
  struct stat status {};
  if (::fstat(file.value, &status) != 0)
    throw system_error(ErrorKind::kData, "data", "cannot read " + path);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorKind::kData, "data", path + " is not a file");
  return static_cast<std::size_t>(status.st_size);
}

void write_all(int descriptor, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error(ErrorKind::kOutput, "data", "cannot write " + path);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

std::uint32_t crc32(std::string_view bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(
      ::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string read_file(const std::string& path) {
  Descriptor file{-1};
  std::string text(open_for_reading(path, file), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.value, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error(ErrorKind::kData, "data", "cannot read " + path);
    // Somebody cut the file while it was read.
    if (got == 0) {
      throw Error(ErrorKind::kData, "data",
                  fmt::format("{} ended after {} of {} bytes", path, done, text.size()));
    }
    done += static_cast<std::size_t>(got);
  }
  return text;
}

void write_file(const std::string& path, std::string_view bytes) {
  // Aside, flush, rename: the name changes hands only after the bytes are on the disk. A crash
  // leaves a .part file, which the next run overwrites.
  const std::string aside = path + ".part";
  try {
    const Descriptor file{::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.value < 0) throw system_error(ErrorKind::kOutput, "data", "cannot write " + aside);
    write_all(file.value, bytes, aside);
    if (::fsync(file.value) != 0)
      throw system_error(ErrorKind::kOutput, "data", "cannot write " + aside);
    if (std::rename(aside.c_str(), path.c_str()) != 0)
      throw system_error(ErrorKind::kOutput, "data", "cannot write " + path);
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
}

MappedFile::MappedFile(const std::string& path) {
  Descriptor file{-1};
  size_ = open_for_reading(path, file);
  if (size_ == 0) return;
  // The mapping outlives the descriptor. Shared: all ranks of a node read the same pages of the
  // page cache.
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.value, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw system_error(ErrorKind::kData, "data", "cannot map " + path);
  }
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileLock::FileLock(const std::string& path, Duration patience)
    : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) throw system_error(ErrorKind::kOutput, "data", "cannot write " + path);
  const Deadline deadline = Deadline::in(patience);
  do {
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
    std::this_thread::sleep_for(std::min<Duration>(deadline.left(), std::chrono::milliseconds(50)));
  } while (!deadline.passed());
  ::close(descriptor_);
  throw Error(ErrorKind::kOutput, "data", "another process is at work in the folder of " + path)
      .hint("wait until it has finished");
}

// The file stays: were it deleted, a process that waits for the old file and one that makes a new
// one could both hold a lock.
FileLock::~FileLock() { ::close(descriptor_); }

}  // namespace shoal::data
