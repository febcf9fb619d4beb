#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/comm/world.h"
#include "shoal/data/prepare.h"
#include "shoal/train/config/metrics.h"
#include "shoal/train/run_directory.h"
#include "shoal/train/trainer.h"
#include "tests/train/small_text.h"

namespace shoal::train {

/// Settings of job keys, as --set takes them; later ones win.
using Sets = std::vector<std::string>;

inline Sets operator+(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The small text as a data set of bytes in `folder`, beside which the text itself is left.
inline void prepare_small_text(const std::string& folder) {
  write_small_text(folder + "-text");
  data::PrepareOptions options;
  options.out = folder;
  options.inputs = {folder + "-text"};
  options.tokenizer = data::TokenizerKind::kBytes;
  options.validation_fraction = 0.2;
  data::prepare(options);
}

/// A job that trains a tiny transformer on the data set in `data`, with dropout, so that random
/// numbers must agree too.
inline std::string small_job(const std::string& data, int steps = 20) {
  return fmt::format(R"(
[job]
name = "small"
[model]
name = "gpt2-tiny"
layers = 2
hidden = 32
heads = 2
kv_heads = 2
ffn = 64
vocab = 0
sequence = 32
dropout = 0.1
[data]
source = "tokens"
folders = ["{}"]
[training]
global_batch_sequences = 8
sequence_length = 32
steps = {}
[optimizer]
learning_rate = 3e-3
clip_norm = 1.0
[lr_scheduler]
warmup_steps = 4
[parallelism]
timeout_s = 60.0
[validation]
interval = 5
batches = 2
[checkpoint]
interval = 5
keep_last = 3
)",
                     data, steps);
}

/// Starts ranks as threads, each with a group of its own, and waits for them.
using StartRanks = std::function<void(const std::function<void(const comm::Group&)>& body)>;

/// Trains on the ranks that `start` starts, in `directory`, and returns what was measured; `code`
/// is what train returned.
inline std::vector<StepMetrics> train_on(const StartRanks& start, const std::string& directory,
                                         const std::string& job_text,
                                         const std::vector<std::string>& sets,
                                         std::atomic<int>* stop = nullptr, int* code = nullptr) {
  std::filesystem::create_directories(directory);
  const Job job = parse_job(job_text, "small.toml", sets);
  start([&](const comm::Group& group) {
    RunOptions options;
    options.job = job;
    options.run_directory = directory;
    options.world = group;
    options.console = false;
    options.stop_signal = stop;
    const int mine = train(options);
    if (code && group.rank() == 0) *code = mine;
  });
  return read_metrics(RunDirectory(directory).metrics());
}

/// The same on `ranks` threads over shared memory; their collectives are recorded in `flight`.
inline std::vector<StepMetrics> train_on_threads(
    const std::string& directory, const std::string& job_text, const std::vector<std::string>& sets,
    int ranks, std::atomic<int>* stop = nullptr, int* code = nullptr,
    std::shared_ptr<collective::FlightBook> flight = nullptr) {
  comm::WorldOptions world;
  world.flight = std::move(flight);
  world.size = ranks;
  world.arena = false;
  world.timeout = std::chrono::seconds(60);
  return train_on([&](const auto& body) { comm::run_on_threads(world, body); }, directory, job_text,
                  sets, stop, code);
}

}  // namespace shoal::train
