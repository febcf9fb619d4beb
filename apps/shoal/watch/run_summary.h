#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/shoal/run_directory.h"
#include "apps/shoal/watch/job_status.h"
#include "apps/shoal/watch/last_run.h"
#include "shoal/base/clock.h"
#include "shoal/train/config/metrics.h"

namespace shoal::apps {

/// All that is known of a run: what its process answers, and what lies in its directory.
struct RunSummary {
  std::string directory{};
  std::optional<JobStatus> job{};  ///< the answer of a run that goes on
  /// The process that holds the lock of the directory, and its state. A run may hold it and not
  /// answer: when it begins, when it ends, when it is stopped, and when it is on another host.
  std::optional<LockHolder> holder{};
  ProcessState holder_state = ProcessState::kUnknown;
  std::optional<LastRun> last{};
  std::vector<train::StepMetrics> recent{};  ///< the last steps, in order
  std::optional<std::int64_t> checkpoint{};  ///< step of the newest complete checkpoint

  bool runs() const { return job || holder; }
  /// Returns the unit in which the job of the directory is counted: "tokens", or "samples" of a
  /// table.
  std::string unit() const;
  /// Steps that are complete.
  std::int64_t steps() const;
  /// 0: not known.
  std::int64_t total_steps() const;
  /// Seconds until the last step, at the mean speed since this start; nothing where unknown.
  std::optional<double> seconds_left() const;
  /// The newest of `recent` that has an evaluation; null: none has.
  const train::StepMetrics* last_evaluated() const;
};

/// Bytes at the end of metrics.jsonl that are read: the last steps, some 300 bytes each.
inline constexpr std::size_t kRecentBytes = 64 << 10;

/// Reads the files of a run alone; broken ones count as missing.
RunSummary read_run_files(const std::string& directory, std::size_t recent_bytes = kRecentBytes);

/// Reads them and asks the run, which has until `deadline` to answer. `request` is a word of
/// JobRequests. Throws Error(input missing) when `directory` is no run directory.
RunSummary look_at_run(const std::string& directory, Deadline deadline,
                       const std::string& request = "status",
                       std::size_t recent_bytes = kRecentBytes);

/// Returns the run directory below ./runs that was started last. Throws Error(input missing).
std::string newest_run_directory();

/// One word for the state of a run: "starting", "training", "evaluating", "saving", "ending",
/// "stopping" (it was asked to), "silent" (its process does not answer here), and of a run that is
/// over "finished", "stopped", "failed" or "killed".
std::string state_of(const RunSummary& run);

}  // namespace shoal::apps
