#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/train/job_options.h"
#include "shoal/train/training_state.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

// What any number of ranks saved in any way of sharding, any other goes on with.
namespace shoal::train::checkpoint_matrix_test {
namespace {

namespace fs = std::filesystem;

/// Some ranks and how they shard.
struct Combination {
  int ranks;
  const char* sharding;

  std::string name() const { return fmt::format("{} on {} ranks", sharding, ranks); }
  std::vector<std::string> sets() const {
    const std::string way = sharding;
    if (way == "ZeRO-2") return {"parallelism.zero_stage=2"};
    if (way == "pp") return {"parallelism.pipeline_parallel_degree=2", "training.micro_batch=3"};
    if (way == "pp x FSDP") {
      return {"parallelism.pipeline_parallel_degree=2", "parallelism.zero_stage=3",
              "training.micro_batch=3"};
    }
    if (way == "pp x tp") {
      return {"parallelism.pipeline_parallel_degree=2", "parallelism.tensor_parallel_degree=2",
              "parallelism.pipeline_parallel_schedule=zb-v", "training.micro_batch=2"};
    }
    if (way == "cp x ZeRO-2")
      return {"parallelism.context_parallel_degree=2", "parallelism.zero_stage=2"};
    if (way == "cp x tp") {
      return {"parallelism.context_parallel_degree=2", "parallelism.tensor_parallel_degree=2",
              "parallelism.zero_stage=3"};
    }
    const std::string pp = "parallelism.pipeline_parallel_degree=2";
    const std::string tp = "parallelism.tensor_parallel_degree=2";
    const std::string cp = "parallelism.context_parallel_degree=2";
    const std::string fsdp = "parallelism.zero_stage=3";
    if (way == "pp x cp x tp")
      return {pp, cp, tp, "parallelism.pipeline_parallel_schedule=zb-h1", "training.micro_batch=2"};
    if (way == "pp x tp x FSDP") return {pp, tp, fsdp, "training.micro_batch=2"};
    if (way == "cp x tp x FSDP") return {cp, tp, fsdp};
    if (way == "HSDP x cp") return {cp, fsdp, "parallelism.data_parallel_replicate_degree=2"};
    if (way == "tp x DDP") return {"parallelism.tensor_parallel_degree=2"};
    if (way == "tp x FSDP")
      return {"parallelism.tensor_parallel_degree=2", "parallelism.zero_stage=3"};
    if (way == "FSDP") return {"parallelism.zero_stage=3"};
    // The whole in as many copies as divide the ranks: 1 x 1, 2 x 1, 3 x 1, 2 x 2.
    if (way == "HSDP") {
      return {"parallelism.zero_stage=3",
              fmt::format("parallelism.data_parallel_replicate_degree={}", ranks == 4 ? 2 : ranks)};
    }
    return {};
  }
};

std::vector<Combination> all_combinations() {
  std::vector<Combination> ways;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const char* sharding : {"DDP", "ZeRO-2", "FSDP", "HSDP"})
      if (ranks > 1 || std::string(sharding) != "HSDP") ways.push_back({ranks, sharding});
  }
  ways.push_back({2, "tp x DDP"});
  ways.push_back({4, "tp x FSDP"});
  ways.push_back({2, "cp x ZeRO-2"});
  ways.push_back({4, "cp x tp"});
  ways.push_back({2, "pp"});
  ways.push_back({4, "pp x tp"});
  ways.push_back({4, "pp x FSDP"});
  return ways;
}

constexpr int kSaved = 2,
              kSteps = 5;  // saved behind training after step 2; all compare up to step 5

/// Tiny, with dropout, so that random numbers must agree too; sequences divide among 1 to 4 ranks.
std::string tiny_job(const std::string& data) {
  return fmt::format(R"(
[job]
name = "tiny"
[model]
name = "gpt2-tiny"
layers = 2
hidden = 16
heads = 2
kv_heads = 2
ffn = 32
vocab = 0
sequence = 16
dropout = 0.1
[data]
source = "tokens"
folders = ["{}"]
[training]
global_batch_sequences = 12
sequence_length = 16
steps = 100
[optimizer]
learning_rate = 1e-2
[parallelism]
timeout_s = 60.0
[metrics]
tensorboard = false
[validation]
interval = 0
batches = 1
[checkpoint]
interval = {}
keep_last = 0
)",
                     data, kSaved);
}

class CheckpointMatrix : public ::testing::Test {
 protected:
  void SetUp() override { prepare_small_text(folder_.path() + "/data"); }

  std::string path(const std::string& run) const { return folder_.path() + "/" + run; }

  /// Trains until an error ends it at the beginning of step `end` + 1, which skips what a run does
  /// at its end; returns what was measured.
  std::vector<StepMetrics> train_until(int end, const std::string& run, const Combination& way,
                                       std::vector<std::string> sets = {}) {
    for (const std::string& set : way.sets()) sets.push_back(set);
    sets.insert(sets.end(), {"debug.fault=error", fmt::format("debug.fault_step={}", end + 1)});
    try {
      train_on_threads(path(run), tiny_job(path("data")), sets, way.ranks);
      ADD_FAILURE() << "the run went on";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("debug.fault"), std::string::npos) << error.what();
    }
    return read_metrics(RunDirectory(path(run)).metrics());
  }

  TemporaryFolder folder_;
};

/// float32 sums in another order; ten times less than what another sample or another dropout mask
/// would do.
void expect_same_losses(const std::vector<StepMetrics>& found,
                        const std::vector<StepMetrics>& whole, std::size_t first,
                        const std::string& what) {
  ASSERT_EQ(found.size(), whole.size() - first) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].step, whole[first + i].step) << what;
    EXPECT_EQ(found[i].tokens, whole[first + i].tokens) << what;
    EXPECT_NEAR(found[i].loss, whole[first + i].loss, 1e-5 * whole[first + i].loss)
        << what << ", step " << found[i].step;
  }
}

TEST_F(CheckpointMatrix, AnyMeshAndShardingGoesOnWithWhatAnyOtherSaved) {
  const auto whole = train_until(kSteps, "whole", {1, "DDP"}, {"checkpoint.interval=0"});
  ASSERT_EQ(whole.size(), static_cast<std::size_t>(kSteps));
  for (int i = 1; i < kSteps; ++i) {
    ASSERT_GT(std::abs(whole[i].loss - whole[i - 1].loss), 1e-3)
        << "steps hardly differ: the test shows nothing";
  }
  for (const Combination& from : all_combinations()) {
    // Step 4 waits for the save of step 2, which went on behind steps 3 and 4.
    train_until(2 * kSaved, from.name(), from);
    const std::string saved = fmt::format("{}/checkpoints/step-{}", path(from.name()), kSaved);
    ASSERT_TRUE(fs::exists(saved)) << from.name();
    EXPECT_EQ(read_record(saved).samples, 12 * kSaved);
    for (const Combination& to : all_combinations()) {
      const std::string what = from.name() + ", then " + to.name();
      fs::create_directories(path(what) + "/checkpoints");
      fs::create_directory_symlink(saved,
                                   fmt::format("{}/checkpoints/step-{}", path(what), kSaved));
      expect_same_losses(train_until(kSteps, what, to, {"checkpoint.interval=0"}), whole, kSaved,
                         what);
      fs::remove_all(path(what));
    }
    fs::remove_all(path(from.name()));
  }
}

// Each goes on with what the one before saved.
TEST_F(CheckpointMatrix, AChainThroughMeshesOfEightRanksIsOneRun) {
  const std::vector<Combination> chain{
      {8, "pp x cp x tp"},   {8, "HSDP x cp"}, {8, "pp x tp x FSDP"},
      {8, "cp x tp x FSDP"}, {1, "DDP"},       {8, "pp x cp x tp"}};
  const int end = kSaved * static_cast<int>(chain.size());
  const auto whole = train_until(end, "whole", {1, "DDP"}, {"checkpoint.interval=0"});
  std::string saved;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const std::string run = fmt::format("{}: {}", i, chain[i].name());
    const auto first = i * kSaved;
    const auto last = first + kSaved;
    fs::create_directories(path(run) + "/checkpoints");
    if (i > 0)
      fs::create_directory_symlink(saved, fmt::format("{}/checkpoints/step-{}", path(run), first));
    const auto found =
        train_until(static_cast<int>(last), run, chain[i], {"checkpoint.asynchronous=false"});
    expect_same_losses(found, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(last)},
                       first, run);
    saved = fmt::format("{}/checkpoints/step-{}", path(run), last);
  }
}

/// Every file of tensors that a run saved: by "step/file".
std::map<std::string, std::uintmax_t> saved_files(const std::string& checkpoints) {
  std::map<std::string, std::uintmax_t> files;
  for (const auto& step : checkpoint::format::list_steps(checkpoints)) {
    for (const auto& entry : fs::directory_iterator(step.path)) {
      if (entry.path().extension() == ".safetensors")
        files[fs::relative(entry.path(), checkpoints)] = entry.file_size();
    }
  }
  return files;
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Nor does an optimizer whose state lies in files.
TEST_F(CheckpointMatrix, SavingBehindTrainingChangesNeitherTrainingNorWhatIsSaved) {
  const std::vector<std::string> fp32;
  const std::vector<std::string> bf16{"precision.type=bf16", "precision.moments=bf16"};
  for (const auto& [way, precision] : {std::pair{Combination{1, "DDP"}, fp32},
                                       {Combination{3, "DDP"}, fp32},
                                       {Combination{2, "ZeRO-2"}, fp32},
                                       {Combination{4, "HSDP"}, fp32},
                                       {Combination{2, "FSDP"}, bf16}}) {
    const auto run = [&, way = way, precision = precision](const std::string& name,
                                                           std::vector<std::string> sets) {
      sets.insert(sets.end(),
                  {"checkpoint.interval=1", "training.steps=6", "checkpoint.keep_last=0"});
      for (const auto& more : {way.sets(), precision})
        sets.insert(sets.end(), more.begin(), more.end());
      return train_on_threads(path(name), tiny_job(path("data")), sets, way.ranks);
    };
    const auto never = run("never", {"checkpoint.asynchronous=false"});
    const auto behind = run("behind", {"optimizer.state_folder=" + path("state")});
    const auto slow = run("slow", {"checkpoint.staging_mb=0.01", "checkpoint.writer_share=0.05"});
    ASSERT_EQ(never.size(), 6u);
    for (std::size_t i = 0; i < never.size(); ++i) {
      EXPECT_EQ(never[i].loss, behind[i].loss) << way.name() << ", step " << i + 1;
      EXPECT_EQ(never[i].loss, slow[i].loss) << way.name() << ", step " << i + 1;
      EXPECT_EQ(never[i].grad_norm, behind[i].grad_norm) << way.name() << ", step " << i + 1;
    }
    const auto files = saved_files(path("never/checkpoints"));
    EXPECT_EQ(files.size(), 6u * way.ranks);
    for (const char* other : {"behind", "slow"}) {
      EXPECT_EQ(saved_files(path(other) + "/checkpoints"), files) << way.name();
      for (const auto& [file, size] : files) {
        EXPECT_TRUE(bytes_of(path("never/checkpoints/" + file)) ==
                    bytes_of(path(other) + "/checkpoints/" + file))
            << way.name() << ": " << file;
      }
    }
    for (const char* name : {"never", "behind", "slow"}) fs::remove_all(path(name));
  }
}

TEST(CheckpointKeys, SayHowIsSaved) {
  const JobConfig config = parse_job(tiny_job("data"), "tiny.toml",
                                     {"checkpoint.max_file_mb=7", "checkpoint.keep_last=5",
                                      "checkpoint.staging_mb=1.5", "checkpoint.writer_share=0.25"})
                               .config;
  EXPECT_EQ(save_options(config).max_shard_bytes, 7'000'000);
  EXPECT_EQ(save_options(config).keep_last, 5);
  EXPECT_EQ(saver_options(config).staging_bytes, 1'500'000);
  EXPECT_EQ(saver_options(config).writer_share, 0.25);
}

}  // namespace
}  // namespace shoal::train::checkpoint_matrix_test
