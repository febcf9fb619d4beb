// What the planner says of a job's memory, against what the arena counts while the job trains.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train {
namespace {

using Sets = std::vector<std::string>;

/// Many small blocks, so that one more or less whose gradient is on its way to its owner counts little.
std::string job(const std::string& data) {
  return fmt::format(R"(
[model]
name = "gpt2-tiny"
layers = 24
hidden = 64
heads = 2
ffn = 256
vocab = 1024
sequence = 64
[data]
source = "tokens"
folders = ["{}"]
[training]
global_batch_sequences = 8
sequence_length = 64
steps = 3
[parallelism]
in_process = true
timeout_s = 20.0
[validation]
interval = 0
batches = 1
[checkpoint]
interval = 0
[metrics]
tensorboard = false
)",
                     data);
}

class PlannedMemory : public testing::Test {
 protected:
  void SetUp() override { prepare_small_text(folder_.path() + "/data"); }

  void train_job(const Sets& sets, int ranks) {
    const std::string directory = folder_.path() + fmt::format("/run-{}", runs_++);
    std::filesystem::create_directories(directory);
    const Job parsed = parse_job(job(folder_.path() + "/data"), "planned.toml", sets);
    comm::WorldOptions world;
    world.size = ranks;
    world.timeout = std::chrono::seconds(20);
    comm::run_on_threads(world, [&](const comm::Group& group) {
      RunOptions options;
      options.job = parsed, options.run_directory = directory, options.world = group, options.console = false;
      train(options);
    });
    std::ifstream file(RunDirectory(directory).memory());
    memory_ = nlohmann::json::parse(file);
  }

  double planned() const { return memory_.at("planned_bytes"); }
  double measured() const { return memory_.at("peak_bytes"); }

  TemporaryFolder folder_;
  int runs_ = 0;
  nlohmann::json memory_;
};

// The issue asks for 5 %. One rank and replicated ones do the same things in the same order every time: 1 %, for padding and what no formula counts.
TEST_F(PlannedMemory, OfOneRankAndOfReplicas) {
  const Sets whole, pieces{"training.micro_batch=1"}, full{"activation_checkpoint.mode=\"full\""}, some{"activation_checkpoint.mode=\"selective\""},
      long_rows{"training.global_batch_sequences=40"}, large{"model.vocab=8192", "training.global_batch_sequences=2"},
      untied{"model.tied_embeddings=false"}, sgd{"optimizer.name=\"sgd\"", "optimizer.momentum=0.0"};
  for (const Sets& sets : {whole, pieces, full, some, long_rows, large, untied, sgd})
    for (const int ranks : {1, 2}) {
      train_job(sets, ranks);
      EXPECT_NEAR(planned() / measured(), 1, 0.01) << ranks << " ranks, " << fmt::format("{}", fmt::join(sets, " "));
    }
}

// Gradients leave while others are written; how many are on their way at once depends on which rank is ahead.
TEST_F(PlannedMemory, OfShards) {
  for (const int stage : {1, 2, 3})
    for (const Sets& more :
         {Sets{}, Sets{"training.micro_batch=1"}, Sets{"activation_checkpoint.mode=\"full\"", "training.global_batch_sequences=40"}}) {
      Sets sets = more;
      sets.push_back(fmt::format("parallelism.zero_stage={}", stage));
      train_job(sets, 2);
      EXPECT_NEAR(planned() / measured(), 1, 0.05) << fmt::format("{}", fmt::join(sets, " "));
    }
  train_job({"parallelism.zero_stage=3", "parallelism.reduce_every_micro_batch=true", "training.micro_batch=1"}, 2);
  EXPECT_NEAR(planned() / measured(), 1, 0.05);
}

}  // namespace
}  // namespace shoal::train
