#include "shoal/optim/state_file.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "shoal/base/system_error.h"

namespace shoal::optim {
namespace {

/// A file that is open and has no name.
int nameless_file(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  // A file without a name vanishes with the process, whatever ends it. File systems without
  // O_TMPFILE answer EOPNOTSUPP, old kernels EISDIR: there a named file is unlinked at once.
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string pattern = folder + "/optimizer-XXXXXX";
  const int named = ::mkostemp(pattern.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(pattern.c_str());
  return named;
}

/// The file's pages, room for all of them taken: a page that found none later would end the
/// process. MAP_FAILED and errno when there is none.
void* map_zeros(int file, std::size_t bytes) {
  if (const int error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes))) {
    errno = error;
    return MAP_FAILED;
  }
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

}  // namespace

at::Tensor zeros_in_file(const std::string& folder, std::int64_t count, at::ScalarType type) {
  if (count == 0) return at::zeros({0}, type);
  const std::size_t bytes = static_cast<std::size_t>(count) * c10::elementSize(type);
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  const int file = nameless_file(folder);
  void* const data = file >= 0 ? map_zeros(file, bytes) : MAP_FAILED;
  // The mapping keeps the file alive, so the descriptor is not needed; close() must not hide the
  // errno of a failure.
  const int error = errno;
  if (file >= 0) ::close(file);
  errno = error;
  if (data == MAP_FAILED) {
    throw system_error(ErrorKind::kOutput, "optimizer",
                       fmt::format("cannot map {} bytes of state in '{}'", bytes, folder))
        .hint("name a folder on a disk with that much room");
  }
  return at::from_blob(
      data, {count}, [bytes](void* mapped) { ::munmap(mapped, bytes); }, type);
}

}  // namespace shoal::optim
