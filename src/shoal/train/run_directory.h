#pragma once

#include <string>
#include <utility>

namespace shoal::train {

/// The paths of a run's files. The class makes and opens nothing: the launcher makes the folder,
/// moves an older one aside and holds the lock.
class RunDirectory {
 public:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string memory() const { return path_ + "/memory.json"; }
  /// Memory of rank `rank` in the first steps, moment by moment; memory_plot() draws that of rank
  /// 0.
  std::string memory_timeline(int rank) const {
    return path_ + "/memory-rank-" + std::to_string(rank) + ".csv";
  }
  std::string memory_plot() const { return path_ + "/memory.svg"; }
  std::string trace() const { return path_ + "/trace.json"; }
  /// A member of an elastic group writes the steps that it has committed, and the address at which
  /// the others find it.
  std::string lineage() const { return path_ + "/lineage.jsonl"; }
  std::string address() const { return path_ + "/address"; }
  /// The addresses of the other members of its last view.
  std::string members() const { return path_ + "/members"; }
  std::string config() const { return path_ + "/config.toml"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  /// The weights of model.from as a checkpoint, while the run begins.
  std::string source_weights() const { return path_ + "/.model-from"; }
  std::string tensorboard() const { return path_ + "/tensorboard"; }
  std::string loss_plot() const { return path_ + "/loss.svg"; }
  std::string tokenizer() const { return path_ + "/tokenizer.model"; }

 private:
  std::string path_;
};

/// Writes a small file whole or not at all: under another name, which is then renamed. Throws
/// Error(output).
void write_whole(const std::string& path, const std::string& text);

}  // namespace shoal::train
