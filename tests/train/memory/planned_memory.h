#pragma once

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/apps/program.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

// Trains jobs, and reads what was planned of their memory and what the arena counted.

namespace shoal::train {

inline constexpr int kLayers = 16;
inline std::string job(const std::string& data) {
  return fmt::format(R"(
[model]
name = "gpt2-tiny"
layers = {}
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
steps = 2
[parallelism]
threads_per_rank = 1
timeout_s = 60.0
[validation]
interval = 0
batches = 1
[checkpoint]
interval = 0
[metrics]
tensorboard = false
)",
                     kLayers, data);
}

inline std::string words(const Sets& sets) { return fmt::format("{}", fmt::join(sets, " ")); }

class PlannedMemory : public testing::Test {
 protected:
  void SetUp() override { prepare_small_text(folder_.path() + "/data"); }

  /// One rank in this process, several as processes of the program: each counts its own arena.
  void train_job(const Sets& sets, int ranks) {
    const std::string directory = folder_.path() + fmt::format("/run-{}", runs_++);
    const std::string text = job(folder_.path() + "/data");
    std::filesystem::create_directories(directory);
    said_.clear();
    if (ranks == 1) {
      RunOptions options;
      options.job = parse_job(text, "planned.toml", sets), options.run_directory = directory,
      options.console = false;
      comm::run_on_threads({}, [&](const comm::Group&) {
        at::set_num_threads(1);  // as the job says; each thread has a workspace of its own
        train(options);
      });
    } else {
      const apps::testing::Outcome outcome = run_program(sets, directory, ranks);
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      said_ = outcome.out + outcome.err;
    }
    std::ifstream file(RunDirectory(directory).memory());
    memory_ = nlohmann::json::parse(file);
    // An evaluation gathers and holds no more than a step.
    EXPECT_GT(evaluated(), 0) << words(sets);
    EXPECT_LE(evaluated() - staged(), 1.02 * planned()) << words(sets);
    expect_bounds_hold(words(sets));
  }

  /// No rank takes more than was planned of it, or, where experts are divided, than was said.
  void expect_bounds_hold(const std::string& where) const {
    const auto& ranks = memory_.at("ranks");
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto of = [&](const char* what) { return ranks[i].at(what).get<double>(); };
      const double most = std::max(1.05 * of("planned_bytes"), bound());
      EXPECT_LE(of("peak_bytes") - of("staged_bytes"), most) << where << ", rank " << i;
    }
  }

  apps::testing::Outcome run_program(const Sets& sets, const std::string& directory, int ranks,
                                     const std::vector<std::string>& more = {}) {
    std::ofstream(folder_.path() + "/job.toml") << job(folder_.path() + "/data");
    std::vector<std::string> words{
        apps::testing::shoal_program(), "train", "job.toml", "--run-dir", directory, "--nproc",
        std::to_string(ranks)};
    words.insert(words.end(), more.begin(), more.end());
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    return apps::testing::run(words, folder_.path());
  }

  double planned() const { return memory_.at("planned_bytes"); }
  double staged() const { return memory_.at("staged_bytes"); }
  double measured() const { return memory_.at("peak_bytes").get<double>() - staged(); }

  double evaluated() const { return memory_.at("evaluation_peak_bytes"); }

  double fullest() const {
    double most = 0;
    for (const auto& rank : memory_.at("ranks"))
      most = std::max(most, rank.at("peak_bytes").get<double>());
    return most;
  }
  /// The most that a rank may take, with all tokens at its experts.
  double bound() const {
    const std::string behind = "MB a rank more if all tokens";
    const std::size_t at = said_.find(behind);
    if (at == std::string::npos) return 0;
    const double more = std::stod(said_.substr(said_.rfind("up to ", at) + 6));
    return planned() / static_cast<double>(memory_.at("ranks").size()) + 1e6 * more;
  }

  TemporaryFolder folder_;
  int runs_ = 0;
  std::string said_;
  nlohmann::json memory_;
};

inline const Sets kWhole, kPieces{"training.micro_batch=1"},
    kRecomputed{"activation_checkpoint.mode=\"full\""},
    kSelective{"activation_checkpoint.mode=\"selective\""},
    kManyRows{"training.global_batch_sequences=20"},
    kManyRowsOfTwo{"training.global_batch_sequences=40"},
    kManyWords{"model.vocab=8192", "training.global_batch_sequences=2", "model.layers=24"},
    kUntied{"model.tied_embeddings=false"}, kDropout{"model.dropout=0.1"},
    kSgd{"optimizer.name=\"sgd\"", "optimizer.momentum=0.0"},
    kBudget{"activation_checkpoint.mode=\"budget\"", "activation_checkpoint.budget_mb=20"},
    kBf16{"precision.type=\"bf16\""},
    kNarrow{"precision.gradients=\"bf16\"", "precision.moments=\"bf16\""},
    kTcp{"parallelism.transport=\"tcp\""}, kReduced{"parallelism.reduce_every_micro_batch=true"},
    kQwen2{"model.name=\"qwen2-tiny\"", "model.kv_heads=1"},
    kQwen3{"model.name=\"qwen3-tiny\"", "model.kv_heads=1"},
    kLong{"model.sequence=2048",
          "training.sequence_length=2048",
          "training.global_batch_sequences=1",
          "model.layers=1",
          "model.ffn=64",
          "model.vocab=264",
          "activation_checkpoint.mode=\"full\""},
    kMixture{"model.name=\"moe-tiny\"", "model.layers=8"},
    // Every token visits every expert: rows do not depend on routers.
    kVisitsAll = kMixture + Sets{"model.experts_per_token=4"},
    kShared{"model.name=\"deepseek-moe-tiny\"", "model.layers=8", "model.ffn=64"};

inline const Sets kDividedExperts{"parallelism.expert_parallel_degree=2"},
    kPipeline{"parallelism.pipeline_parallel_degree=2", "training.micro_batch=1"},
    kFourStages{"parallelism.pipeline_parallel_degree=4"},
    kZeroBubble{"parallelism.pipeline_parallel_schedule=zb-h1"};

}  // namespace shoal::train
