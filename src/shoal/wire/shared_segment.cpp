#include "shoal/wire/shared_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "shoal/base/system_error.h"

namespace shoal::wire {

SharedSegment::SharedSegment(int fd, std::size_t bytes) : fd_(fd), bytes_(bytes) {
  // The mapping is far larger than the memory that will be touched: the kernel must not reserve for
  // all of it.
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED) {
    const Error error = system_error(ErrorKind::kResource, "shared_segment",
                                     fmt::format("cannot map {} bytes of shared memory", bytes));
    close(fd);
    throw Error(error).hint("raise `ulimit -v`, or run with arena = off");
  }
  data_ = static_cast<std::byte*>(p);
}

SharedSegment SharedSegment::create(const std::string& name, std::size_t bytes) {
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw system_error(ErrorKind::kResource, "shared_segment", "cannot create a memfd");
  // The last seal keeps a peer, which gets a descriptor that may write, from adding seals that
  // would break this process, such as one against further mappings that write.
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const Error error = system_error(ErrorKind::kResource, "shared_segment",
                                     fmt::format("cannot size a memfd to {} bytes", bytes));
    close(fd);
    throw error;
  }
  return SharedSegment(fd, bytes);
}

// An unsealed file could be truncated under the mapping; a read would then raise SIGBUS.
SharedSegment SharedSegment::adopt(int fd) {
  struct stat status {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &status) != 0 || status.st_size <= 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    close(fd);
    throw Error(ErrorKind::kData, "shared_segment",
                "a peer passed a descriptor that is not a sealed memory segment");
  }
  return SharedSegment(fd, static_cast<std::size_t>(status.st_size));
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedSegment::~SharedSegment() {
  if (data_) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

void SharedSegment::punch(std::size_t offset, std::size_t bytes) const {
  // Pages that lie only partly in the range hold bytes of its neighbours and stay.
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + bytes) / page * page;
  if (begin < end) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
              static_cast<off_t>(end - begin));
  }
}

void SharedSegment::make_private() const {
  // The new mapping takes the same addresses, so the child's pointers into the memory stay valid;
  // its writes go to copies of the pages.
  if (data_)
    mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, fd_, 0);
}

}  // namespace shoal::wire
