#include "apps/shoal/trial_run.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/shoal/self_exec.h"
#include "shoal/base/error.h"
#include "shoal/forecast/trimmed_mean.h"
#include "shoal/train/config/metrics.h"

namespace shoal::apps {
namespace {

/// The first steps do not count: they allocate memory for the first time.
constexpr std::size_t kFirstSteps = 2;

void train(const TrialJob& job, const std::string& directory) {
  std::vector<std::string> arguments{"train",   job.file,  "--run-dir",
                                     directory, "--nproc", fmt::format("{}", job.ranks)};
  std::vector<std::string> sets = job.sets;
  // The run makes the steps that are timed and nothing else.
  for (const std::string& set :
       {fmt::format("training.steps={}", job.steps), std::string("lr_scheduler.warmup_steps=0"),
        std::string("checkpoint.interval=0"), std::string("validation.interval=0"),
        std::string("validation.batches=1"), std::string("metrics.tensorboard=false")})
    sets.push_back(set);
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  output_of_self(arguments, "plan", "the training run failed");
}

TrialRun read(const std::string& directory) {
  TrialRun run;
  std::vector<double> seconds;
  double before = 0;
  std::size_t steps = 0;
  for (const train::StepMetrics& step : train::read_metrics(directory + "/metrics.jsonl")) {
    const auto tokens = static_cast<double>(step.tokens);
    run.tokens = tokens - before;
    before = tokens;
    if (++steps <= kFirstSteps) continue;
    // Metrics have the rate of each step: the tokens of the step over it are its time.
    seconds.push_back(run.tokens / step.tokens_per_s);
    run.data_wait_s += step.data_wait_s.value_or(0);
    run.comm_exposed_s += step.comm_exposed_s.value_or(0);
  }
  if (seconds.empty()) {
    throw Error(ErrorKind::kUsage, "plan",
                fmt::format("--steps: more than {} are needed", kFirstSteps));
  }
  run.step_s = forecast::trimmed_mean(seconds);
  run.data_wait_s /= static_cast<double>(seconds.size());
  run.comm_exposed_s /= static_cast<double>(seconds.size());
  // Memory is measured with an arena only.
  if (std::ifstream memory(directory + "/memory.json"); memory)
    run.peak_bytes = nlohmann::json::parse(memory).at("peak_bytes");
  return run;
}

}  // namespace

ScratchFolder::ScratchFolder() {
  path_ = (std::filesystem::temp_directory_path() / "shoal-trial-XXXXXX").string();
  if (!::mkdtemp(path_.data()))
    throw Error(ErrorKind::kOutput, "plan", fmt::format("{}: cannot be made", path_));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TrialRun trial_run(const TrialJob& job, const std::string& directory) {
  train(job, directory);
  return read(directory);
}

}  // namespace shoal::apps
