#pragma once

#include <optional>
#include <string>

namespace shoal::apps {

/// The directory that a run writes into, locked against a second job for as long as this object or
/// any process that inherited it lives.
class RunDirectory {
 public:
  /// Makes the directory and its logs/, if they are not there, and locks it. With `fresh`, a
  /// directory that was there before is moved aside to <path>.old-<n>. Throws Error(output) when it
  /// cannot be made, when it is no directory, and when another job holds its lock (with that job's
  /// process id).
  RunDirectory(const std::string& path, bool fresh);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  /// Returns the path to which the old directory was moved; empty when there was none to move.
  const std::string& moved_to() const { return moved_to_; }

 private:
  void move_aside();

  std::string path_;
  std::string moved_to_;
  int lock_ = -1;
};

/// The process that holds the lock of a run directory.
struct LockHolder {
  int process = -1;    ///< -1: not known
  std::string host{};  ///< where it runs; empty: on this host

  bool is_here() const { return host.empty(); }
  /// "process 4711 on node2".
  std::string text() const;
};

/// Returns nothing where no process holds the lock, or no run directory is.
std::optional<LockHolder> lock_holder(const std::string& run_directory);

}  // namespace shoal::apps
