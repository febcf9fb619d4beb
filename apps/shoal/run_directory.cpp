#include "apps/shoal/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "shoal/base/clock.h"
#include "shoal/base/host_name.h"
#include "shoal/base/system_error.h"
#include "shoal/wire/descriptor.h"

namespace shoal::apps {
namespace {

namespace fs = std::filesystem;

void make(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    throw Error(ErrorKind::kOutput, "run directory",
                fmt::format("cannot make {}: {}", path, error.message()));
  }
}

/// Ranks of a launcher that was killed end within moments, and let go of what they inherited.
bool lock_soon(int file) {
  for (const Deadline end = Deadline::in(std::chrono::seconds(2));;) {
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
    if ((errno != EWOULDBLOCK && errno != EINTR) || end.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// The lock file's two lines are its holder's process id and host.
LockHolder holder_in(int file) {
  char text[320] = {};
  const ssize_t length = ::pread(file, text, sizeof text - 1, 0);
  LockHolder holder;
  if (length > 0) std::istringstream(text) >> holder.process >> holder.host;
  if (holder.process <= 0) holder.process = -1;
  if (holder.host == host_name()) holder.host.clear();
  return holder;
}

/// The descriptor is inherited by ranks: while one lives, the directory is in use.
int take_lock(const std::string& directory) {
  const std::string path = directory + "/lock";
  // Without O_CLOEXEC: ranks inherit the lock across exec, and it lasts until the last of them has
  // ended.
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT, 0644);
  if (file < 0)
    throw system_error(ErrorKind::kOutput, "run directory", fmt::format("cannot open {}", path));
  if (!lock_soon(file)) {
    const bool taken = errno == EWOULDBLOCK;
    const Error error =
        system_error(ErrorKind::kOutput, "run directory", fmt::format("cannot lock {}", path));
    const LockHolder holder = holder_in(file);
    ::close(file);
    if (!taken) throw error;
    throw Error(ErrorKind::kOutput, "run directory",
                fmt::format("{} is in use by another job ({})", directory, holder.text()))
        .hint("wait until it has ended, or choose another directory with --run-dir");
  }
  // For people and other terminals; the lock itself is the kernel's.
  const std::string holder = fmt::format("{}\n{}\n", ::getpid(), host_name());
  if (::ftruncate(file, 0) != 0 ||
      ::pwrite(file, holder.data(), holder.size(), 0) != static_cast<ssize_t>(holder.size())) {
    const Error error =
        system_error(ErrorKind::kOutput, "run directory", fmt::format("cannot write {}", path));
    ::close(file);
    throw error;
  }
  return file;
}

bool holds_a_run(const std::string& directory) {
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename() != "lock") return true;
  return false;
}

std::string free_name(const std::string& path) {
  for (int n = 1;; ++n) {
    const std::string name = fmt::format("{}.old-{}", path, n);
    // symlink_status: a link that leads nowhere is a name that is taken.
    if (!fs::exists(fs::symlink_status(name))) return name;
  }
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path, bool fresh)
    : path_(fs::path(path).lexically_normal().string()) {
  // "runs/x/" must become "runs/x.old-1" when it is moved aside, not "runs/x/.old-1".
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  make(path_);
  lock_ = take_lock(path_);
  if (fresh && holds_a_run(path_)) move_aside();
  make(path_ + "/logs");
}

void RunDirectory::move_aside() {
  // The old directory's lock is held while it moves, so that no job is pulled away from under
  // itself.
  moved_to_ = free_name(path_);
  std::error_code error;
  fs::rename(path_, moved_to_, error);
  const int old = lock_;
  if (!error) {
    make(path_);
    lock_ = take_lock(path_);
  }
  ::close(old);
  if (error) {
    throw Error(ErrorKind::kOutput, "run directory",
                fmt::format("cannot move {} aside to {}: {}", path_, moved_to_, error.message()));
  }
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

std::string LockHolder::text() const {
  const std::string number = process > 0 ? std::to_string(process) : "of an unknown number";
  return fmt::format("process {}{}{}", number, is_here() ? "" : " on ", host);
}

std::optional<LockHolder> lock_holder(const std::string& run_directory) {
  const wire::Descriptor file(::open((run_directory + "/lock").c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return std::nullopt;
  // A job that starts in this moment tries again for two seconds, so a look cannot keep it out.
  if (::flock(file.get(), LOCK_SH | LOCK_NB) == 0) return std::nullopt;
  return holder_in(file.get());
}

}  // namespace shoal::apps
