#pragma once

#include <optional>
#include <string>

namespace shoal::train {

/// The folder of a run and what lies where in it. A value; nothing is made before it is asked for.
class RunDirectory {
 public:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string config() const { return path_ + "/config.toml"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string tensorboard() const { return path_ + "/tensorboard"; }
  std::string loss_plot() const { return path_ + "/loss.svg"; }
  std::string tokenizer() const { return path_ + "/tokenizer.model"; }
  std::string lock() const { return path_ + "/lock"; }

  /// Makes the folder. Throws Error(output).
  void create() const;
  /// Renames the folder to the first of path.old-1, path.old-2 ... that does not exist, and returns that name; nothing when there is no such folder.
  /// Throws Error(output).
  std::optional<std::string> set_aside() const;
  /// Writes a small file of it, whole or not at all. Throws Error(output).
  void write(const std::string& file, const std::string& text) const;

 private:
  std::string path_;
};

/// Keeps a second job out of a run directory for as long as it lives, also after a crash of the first: the system lets go with the process.
class RunLock {
 public:
  /// Throws Error(usage) that names the process that holds it, Error(output) when the file cannot be made.
  explicit RunLock(const RunDirectory& directory);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

 private:
  int descriptor_ = -1;
};

}  // namespace shoal::train
