#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "shoal/checkpoint/format/reader.h"
#include "shoal/train/config/validate.h"
#include "tests/train/runs_of_one_job.h"

// Jobs whose members train by themselves.

namespace shoal::train {

inline const Sets kFsdp{"parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2"};
inline const Sets kDiLoCo{"low_communication.method=diloco", "low_communication.every=2"};

/// Bytes by name.
using Values = std::map<std::string, std::vector<char>>;

class MemberRuns : public RunsOfOneJob {
 protected:
  std::string job() const override { return small_job(path("data"), 6); }

  /// Without what is not of the steps: evaluations and checkpoints.
  static Sets alone() {
    return {"validation.interval=0", "validation.batches=1", "checkpoint.interval=0",
            "checkpoint.at_end=false", "metrics.tensorboard=false"};
  }
  std::vector<StepMetrics> train(const std::string& run, const Sets& sets, int ranks) {
    validate(parse_job(job(), "small.toml", sets), ranks);
    return train_on_threads(path(run), job(), sets, ranks, nullptr, nullptr, flight_);
  }
  /// The same of a run that goes on with the step `step` that `from` saved.
  std::vector<StepMetrics> go_on(const std::string& run, const std::string& from, int step,
                                 const Sets& sets, int ranks) {
    std::filesystem::remove_all(path(run));
    std::filesystem::create_directories(path(run) + "/checkpoints");
    std::filesystem::create_directory_symlink(saved(from, step), saved(run, step));
    return train(run, sets, ranks);
  }
  /// Returns the bytes of all tensors of a checkpoint whose names begin with `prefix`.
  Values values(const std::string& run, int step, const std::string& prefix) const {
    checkpoint::format::Reader reader(saved(run, step));
    Values values;
    for (const auto& tensor : reader.manifest().tensors)
      if (tensor.name.starts_with(prefix)) values[tensor.name] = reader.read(tensor);
    return values;
  }
};

}  // namespace shoal::train
