#include "shoal/train/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "shoal/base/system_error.h"

namespace shoal::train {
namespace fs = std::filesystem;

void RunDirectory::create() const {
  std::error_code failed;
  fs::create_directories(path_, failed);
  if (failed) throw Error(ErrorKind::kOutput, "run directory", fmt::format("cannot make {}: {}", path_, failed.message()));
}

std::optional<std::string> RunDirectory::set_aside() const {
  if (!fs::exists(path_)) return std::nullopt;
  for (int number = 1;; ++number) {
    const std::string aside = fmt::format("{}.old-{}", path_, number);
    if (fs::exists(aside)) continue;
    if (std::rename(path_.c_str(), aside.c_str()) != 0) throw system_error(ErrorKind::kOutput, "run directory", "cannot rename " + path_);
    return aside;
  }
}

void RunDirectory::write(const std::string& file, const std::string& text) const {
  const std::string aside = file + ".writing";
  {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(aside.c_str(), "wbe"), &std::fclose);
    if (!out || std::fwrite(text.data(), 1, text.size(), out.get()) != text.size() || std::fflush(out.get()) != 0)
      throw system_error(ErrorKind::kOutput, "run directory", "cannot write " + aside);
  }
  if (std::rename(aside.c_str(), file.c_str()) != 0) throw system_error(ErrorKind::kOutput, "run directory", "cannot write " + file);
}

RunLock::RunLock(const RunDirectory& directory) {
  descriptor_ = ::open(directory.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw system_error(ErrorKind::kOutput, "run directory", "cannot open " + directory.lock());
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    char holder[32] = {};
    const ssize_t count = ::pread(descriptor_, holder, sizeof(holder) - 1, 0);
    ::close(descriptor_);
    throw Error(ErrorKind::kUsage, "run directory",
                fmt::format("another job (process {}) is running in {}", count > 0 ? std::string(holder, count) : "unknown", directory.path()))
        .hint("wait for it, or give this one a --run-dir of its own");
  }
  const std::string me = std::to_string(::getpid());
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, me.data(), me.size(), 0) < 0)
    throw system_error(ErrorKind::kOutput, "run directory", "cannot write " + directory.lock());
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace shoal::train
