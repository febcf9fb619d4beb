#include "apps/shoal/watch/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "apps/shoal/watch/run_socket.h"
#include "shoal/base/error.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/train/config/job_file.h"

namespace shoal::apps {
namespace {

namespace fs = std::filesystem;

/// Reads the lines that are whole among the last `bytes` of a metrics file.
std::vector<train::StepMetrics> last_metrics(const std::string& path, std::size_t bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : 0;
  const std::streamoff first =
      std::max<std::streamoff>(0, size - static_cast<std::streamoff>(bytes));
  file.seekg(first);
  std::string line;
  // The part begins in the middle of a line, of which the rest says nothing.
  if (first > 0) std::getline(file, line);
  std::vector<train::StepMetrics> recent;
  // A last line without its end is being written.
  while (std::getline(file, line) && !file.eof()) {
    try {
      recent.push_back(train::parse_metrics(line));
    } catch (const Error&) {
      // A run that resumes refuses a broken line; who only looks at a run sees the others.
      continue;
    }
  }
  return recent;
}

/// False too where the job of a run cannot be read.
bool trains_on_a_table(const std::string& config) {
  try {
    return fs::exists(config) &&
           train::load_job(config, {}).config.data.source != train::DataKind::kTokens;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string RunSummary::unit() const {
  return trains_on_a_table(directory + "/config.toml") ? "samples" : "tokens";
}

std::int64_t RunSummary::steps() const {
  if (!recent.empty()) return recent.back().step;
  if (!job) return 0;
  // The current step of the furthest rank is not complete.
  std::int64_t furthest = 0;
  for (const RankStatus& rank : job->ranks) furthest = std::max(furthest, rank.step);
  return std::max(furthest - 1, job->first_step);
}

std::int64_t RunSummary::total_steps() const {
  if (job) return job->total_steps;
  return last ? last->total_steps : 0;
}

std::optional<double> RunSummary::seconds_left() const {
  if (!job || job->training_s < 0 || job->total_steps == 0) return std::nullopt;
  const std::int64_t done = steps() - job->first_step;
  if (done <= 0) return std::nullopt;
  const auto left = static_cast<double>(std::max<std::int64_t>(0, job->total_steps - steps()));
  return job->training_s * left / static_cast<double>(done);
}

const train::StepMetrics* RunSummary::last_evaluated() const {
  const auto step = std::find_if(recent.rbegin(), recent.rend(), [](const train::StepMetrics& m) {
    return m.evaluation.has_value();
  });
  return step == recent.rend() ? nullptr : &*step;
}

RunSummary read_run_files(const std::string& directory, std::size_t recent_bytes) {
  RunSummary run{.directory = directory,
                 .last = read_last_run(directory),
                 .recent = last_metrics(directory + "/metrics.jsonl", recent_bytes)};
  if (const auto newest = checkpoint::format::newest_step(directory + "/checkpoints"))
    run.checkpoint = newest->step;
  return run;
}

RunSummary look_at_run(const std::string& directory, Deadline deadline, const std::string& request,
                       std::size_t recent_bytes) {
  if (!fs::exists(directory + "/lock")) {
    throw Error(ErrorKind::kInputMissing, "watch", fmt::format("{} is no run directory", directory))
        .hint("`shoal train` writes one, runs/<job name> unless --run-dir says otherwise");
  }
  std::optional<JobStatus> job;
  try {
    if (const auto answer = ask_run(directory, request, deadline)) job = parse_job_status(*answer);
  } catch (const Error& error) {
    // A process that listens and does not answer is what the caller wants to hear of.
    if (error.kind() != ErrorKind::kTimeout) throw;
  }
  // The lock before the files: a run notes how it ended before it lets go of the lock. Both after
  // the answer: the files have at least what it tells.
  const std::optional<LockHolder> holder = lock_holder(directory);
  RunSummary run = read_run_files(directory, recent_bytes);
  run.job = std::move(job);
  run.holder = holder;
  if (holder && holder->is_here() && holder->process > 0)
    run.holder_state = state_of_process(holder->process);
  return run;
}

std::string newest_run_directory() {
  std::error_code none;
  std::string newest;
  fs::file_time_type newest_time;
  const auto is_newer = [&](fs::file_time_type time, const std::string& path) {
    // A kernel that counts time in ticks may give "x" and the "x.old-1" it replaces one time.
    return newest.empty() || time > newest_time || (time == newest_time && path < newest);
  };
  for (const auto& entry : fs::directory_iterator("runs", none)) {
    std::error_code failed;
    // Every start writes its process id there.
    const auto time = fs::last_write_time(entry.path() / "lock", failed);
    if (failed || !is_newer(time, entry.path())) continue;
    newest = entry.path().string();
    newest_time = time;
  }
  if (newest.empty()) {
    throw Error(ErrorKind::kInputMissing, "watch", "there is no run directory below ./runs")
        .hint("name one: shoal status DIR");
  }
  return newest;
}

std::string state_of(const RunSummary& run) {
  if (run.job) {
    return run.job->stopping && run.job->phase == "training" ? "stopping" : run.job->phase;
  }
  if (run.holder) return "silent";
  if (!run.last) return "killed";
  if (run.last->code == 0) return "finished";
  return ended_in_order(run.last->code) ? "stopped" : "failed";
}

}  // namespace shoal::apps
