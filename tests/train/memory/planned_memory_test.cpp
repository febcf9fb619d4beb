// What the planner says of a job's memory, against what the arena counts while the job trains.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "tests/apps/program.h"
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
threads_per_rank = 1
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

  /// One rank in this process, several as processes of the program: each counts its own arena.
  void train_job(const Sets& sets, int ranks) {
    const std::string directory = folder_.path() + fmt::format("/run-{}", runs_++), text = job(folder_.path() + "/data");
    std::filesystem::create_directories(directory);
    if (ranks == 1) {
      RunOptions options;
      options.job = parse_job(text, "planned.toml", sets), options.run_directory = directory, options.console = false;
      comm::run_on_threads({}, [&](const comm::Group&) { train(options); });
    } else {
      const apps::testing::Outcome outcome = run_program(sets, directory, ranks);
      ASSERT_EQ(outcome.code, 0) << outcome.err;
    }
    std::ifstream file(RunDirectory(directory).memory());
    memory_ = nlohmann::json::parse(file);
  }

  apps::testing::Outcome run_program(const Sets& sets, const std::string& directory, int ranks) {
    std::ofstream(folder_.path() + "/job.toml") << job(folder_.path() + "/data");
    std::vector<std::string> words{apps::testing::shoal_program(), "train", "job.toml", "--run-dir", directory, "--nproc", std::to_string(ranks)};
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    return apps::testing::run(words, folder_.path());
  }

  double planned() const { return memory_.at("planned_bytes"); }
  double measured() const { return memory_.at("peak_bytes"); }

  TemporaryFolder folder_;
  int runs_ = 0;
  nlohmann::json memory_;
};

const Sets kWhole, kPieces{"training.micro_batch=1"}, kRecomputed{"activation_checkpoint.mode=\"full\""},
    kSelective{"activation_checkpoint.mode=\"selective\""}, kManyRows{"training.global_batch_sequences=40"},
    kManyWords{"model.vocab=8192", "training.global_batch_sequences=2"}, kUntied{"model.tied_embeddings=false"}, kDropout{"model.dropout=0.1"},
    kSgd{"optimizer.name=\"sgd\"", "optimizer.momentum=0.0"}, kTcp{"parallelism.transport=\"tcp\""};

std::string words(const Sets& sets) { return fmt::format("{}", fmt::join(sets, " ")); }

// The issue asks for 5 %. One rank does the same things in the same order every time, and replicated ones do what one does: 2 %, for padding and what
// is too small to be counted.
TEST_F(PlannedMemory, OfOneRank) {
  for (const Sets& sets : {kWhole, kPieces, kRecomputed, kSelective, kManyRows, kManyWords, kUntied, kDropout, kSgd}) {
    train_job(sets, 1);
    EXPECT_NEAR(planned() / measured(), 1, 0.02) << words(sets);
  }
}

TEST_F(PlannedMemory, OfReplicas) {
  for (const Sets& sets : {kWhole, kManyRows, kTcp}) {
    train_job(sets, 2);
    EXPECT_NEAR(planned() / measured(), 1, 0.02) << words(sets);
  }
}

// Gradients leave while others are written; how many are on their way at once depends on which rank is ahead: 5 %.
TEST_F(PlannedMemory, OfShards) {
  for (const auto& [stage, more] : {std::pair{1, kWhole}, {2, kWhole}, {3, kWhole}, {3, kManyRows}, {2, kTcp}, {3, kTcp}}) {
    Sets sets = more;
    sets.push_back(fmt::format("parallelism.zero_stage={}", stage));
    train_job(sets, 2);
    EXPECT_NEAR(planned() / measured(), 1, 0.05) << words(sets);
  }
}

// "auto" is fp32 or bf16, as this processor multiplies: where it is fp32 memory is planned as if the job had said so.
TEST_F(PlannedMemory, OfAPrecisionThatIsFoundOut) {
  train_job({"precision.type=\"auto\""}, 1);
  std::ifstream config(RunDirectory(folder_.path() + "/run-0").config());
  const std::string found{std::istreambuf_iterator<char>(config), {}};
  const bool narrow = found.find("type = \"bf16\"") != std::string::npos;
  ASSERT_NE(narrow, found.find("type = \"fp32\"") != std::string::npos) << found;
  if (!narrow) EXPECT_NEAR(planned() / measured(), 1, 0.02);
}

// The least that a rank of two shares needs is known to fit; half of what it planned is refused before anything is allocated.
TEST_F(PlannedMemory, AJobThatCannotFitIsRefused) {
  const Sets sets{"training.global_batch_sequences=64"};
  train_job(sets, 2);
  const double rank_mb = planned() / 2 / 1e6;
  const auto limited = [&](double mb) {
    Sets all = sets;
    all.push_back(fmt::format("parallelism.memory_limit_mb={}", mb));
    return run_program(all, folder_.path() + "/limited", 2);
  };
  const apps::testing::Outcome refused = limited(rank_mb / 2);
  EXPECT_EQ(refused.code, 81);
  const std::string words = refused.out + refused.err;
  for (const char* part : {"may take", "activations", "optimizer", "would fit: training.micro_batch", "activation_checkpoint.mode"})
    EXPECT_THAT(words, testing::HasSubstr(part));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/limited/metrics.jsonl"));
  // Blocks are taken in size classes, up to an eighth larger than what is asked for.
  EXPECT_EQ(limited(1.15 * rank_mb).code, 0);
}

}  // namespace
}  // namespace shoal::train
