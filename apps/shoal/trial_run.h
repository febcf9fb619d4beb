#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::apps {

/// A new folder, which the destructor removes.
class ScratchFolder {
 public:
  ScratchFolder();  ///< throws Error(output)
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A few steps of a job, to be measured.
struct TrialJob {
  std::string file;               ///< the job file
  std::vector<std::string> sets;  ///< section.key=value
  std::int64_t ranks = 1;
  std::int64_t steps = 10;  ///< the first two do not count
};

/// Means over the steps that count, without the slowest quarter for `step_s`.
struct TrialRun {
  double step_s = 0;
  double tokens = 0;          ///< of a step (rows, of a table)
  double data_wait_s = 0;     ///< as in train::StepMetrics
  double comm_exposed_s = 0;  ///< as in train::StepMetrics
  double peak_bytes = 0;      ///< of the tensors of all ranks; 0: not measured
};

/// Trains in `directory`, in processes of its own, as a user would: without checkpoints and
/// validation. Throws Error(usage) for too few steps, and Error(internal) with what the run printed
/// where it fails.
TrialRun trial_run(const TrialJob& job, const std::string& directory);

}  // namespace shoal::apps
