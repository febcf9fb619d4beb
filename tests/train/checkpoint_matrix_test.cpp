#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "shoal/checkpoint/format/store.h"
#include "shoal/train/job_options.h"
#include "shoal/train/training_state.h"
#include "tests/train/runs_of_one_job.h"

// What any number of ranks saved in any way of sharding, any other goes on with.
namespace shoal::train::checkpoint_matrix_test {
namespace {

namespace fs = std::filesystem;

const Sets kTp{"parallelism.tensor_parallel_degree=2"};
const Sets kCp{"parallelism.context_parallel_degree=2"};
const Sets kHeads{"parallelism.context_parallel_degree=2",
                  "parallelism.context_parallel_method=heads"};
const Sets kPp{"parallelism.pipeline_parallel_degree=2"};
const Sets kCopies{"parallelism.data_parallel_replicate_degree=2"};
const Sets kZero2{"parallelism.zero_stage=2"};
const Sets kFsdp{"parallelism.zero_stage=3"};
const Sets kZeroBubble{"parallelism.pipeline_parallel_schedule=zb-h1"};
const Sets kVShape{"parallelism.pipeline_parallel_schedule=zb-v"};
const Sets kTwoSequences{"training.micro_batch=2"};
const Sets kThreeSequences{"training.micro_batch=3"};

const Way kAlone{"one rank", 1, {}};
const Way kPpCpTp{"pp x cp x tp", 8, kPp + kCp + kTp + kZeroBubble + kTwoSequences};
const Way kAllAxes{"pp x FSDP x cp x tp", 16, kPp + kFsdp + kCp + kTp + kTwoSequences};

std::vector<Way> all_ways() {
  std::vector<Way> ways{kAlone};
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const std::string on = fmt::format(" on {}", ranks);
    if (ranks > 1) {
      // The whole in as many copies as divide the ranks: 2 x 1, 3 x 1, 2 x 2.
      const std::string copies =
          fmt::format("parallelism.data_parallel_replicate_degree={}", ranks == 4 ? 2 : ranks);
      ways.push_back({"DDP" + on, ranks, {}});
      ways.push_back({"HSDP" + on, ranks, kFsdp + Sets{copies}});
    }
    ways.push_back({"ZeRO-2" + on, ranks, kZero2});
    ways.push_back({"FSDP" + on, ranks, kFsdp});
  }
  ways.push_back({"tp x DDP", 2, kTp});
  ways.push_back({"tp x FSDP", 4, kTp + kFsdp});
  ways.push_back({"cp x ZeRO-2", 2, kCp + kZero2});
  ways.push_back({"cp heads x FSDP", 2, kHeads + kFsdp});
  ways.push_back({"cp x tp", 4, kCp + kTp + kFsdp});
  ways.push_back({"pp", 2, kPp + kThreeSequences});
  ways.push_back({"pp x tp", 4, kPp + kTp + kVShape + kTwoSequences});
  ways.push_back({"pp x FSDP", 4, kPp + kFsdp + kThreeSequences});
  return ways;
}

constexpr int kSteps = 5;  // all compare up to it

/// Tiny, with dropout, so that random numbers must agree too; sequences divide among 1 to 4 ranks.
std::string tiny_job(const std::string& data, int saved) {
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
                     data, saved);
}

class CheckpointMatrix : public RunsOfOneJob {
 protected:
  std::string job() const override { return tiny_job(path("data"), kSaved); }
  /// Trains kSaved steps in each way of `chain`, which goes on with what the one before saved, and
  /// compares with one rank that trains through.
  void expect_one_run(const std::vector<Way>& chain, const Sets& model = {});
};

void CheckpointMatrix::expect_one_run(const std::vector<Way>& chain, const Sets& model) {
  const int end = kSaved * static_cast<int>(chain.size());
  const auto whole = train_until(end, "whole", kAlone, model + Sets{"checkpoint.interval=0"});
  ASSERT_EQ(whole.size(), static_cast<std::size_t>(end));
  expect_steps_differ(whole);
  const Sets sets = model + Sets{"checkpoint.asynchronous=false"};
  const auto name = [](std::size_t i) { return fmt::format("link {}", i); };
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const int first = static_cast<int>(i) * kSaved;
    const int last = first + kSaved;
    const auto found = i == 0 ? train_until(last, name(i), chain[i], sets)
                              : resume_until(last, name(i), chain[i], name(i - 1), first, sets);
    expect_same_losses(found, {whole.begin(), whole.begin() + last},
                       static_cast<std::size_t>(first), fmt::format("{} {}", i, chain[i].name));
  }
}

TEST_F(CheckpointMatrix, AnyMeshAndShardingGoesOnWithWhatAnyOtherSaved) {
  const Sets nothing{"checkpoint.interval=0"};
  const auto whole = train_until(kSteps, "whole", kAlone, nothing);
  ASSERT_EQ(whole.size(), static_cast<std::size_t>(kSteps));
  expect_steps_differ(whole);
  for (const Way& from : all_ways()) {
    // Step 4 waits for the save of step 2, which went on behind steps 3 and 4.
    train_until(2 * kSaved, from.name, from);
    ASSERT_TRUE(fs::exists(saved(from.name, kSaved))) << from.name;
    EXPECT_EQ(read_record(saved(from.name, kSaved)).samples, 12 * kSaved);
    for (const Way& to : all_ways()) {
      const std::string what = from.name + ", then " + to.name;
      expect_same_losses(resume_until(kSteps, what, to, from.name, kSaved, nothing), whole, kSaved,
                         what);
      fs::remove_all(path(what));
    }
    fs::remove_all(path(from.name));
  }
}

TEST_F(CheckpointMatrix, AChainThroughMeshesOfEightAndSixteenRanksIsOneRun) {
  expect_one_run({kPpCpTp,
                  {"HSDP x cp", 8, kCp + kFsdp + kCopies},
                  {"pp x tp x FSDP", 8, kPp + kTp + kFsdp + kTwoSequences},
                  {"cp x tp x FSDP", 8, kCp + kTp + kFsdp},
                  kAlone,
                  kAllAxes,
                  kPpCpTp});
}

const Sets kLlama{"model.name=llama-tiny", "model.heads=4", "model.tied_embeddings=false",
                  "model.init_std=0.2"};

// Heads in groups that share keys and values, a gate beside each matrix, and a head with a weight
// of its own. Two tensor-parallel ranks have a key-value head each, four share two.
TEST_F(CheckpointMatrix, AChainOfALlamaThroughSixteenRanksIsOneRun) {
  const Sets tp4{"parallelism.tensor_parallel_degree=4"};
  expect_one_run({kAllAxes,
                  kAlone,
                  {"tp 4 x FSDP", 8, tp4 + kFsdp},
                  {"pp x cp x tp 4", 16, kPp + kCp + tp4 + kVShape + kTwoSequences},
                  {"pp x FSDP x cp heads", 8, kPp + kFsdp + kHeads + kTwoSequences},
                  kAllAxes},
                 kLlama);
}

// Two ranks divide the columns of each half of four key-value heads: each computes with one.
TEST_F(CheckpointMatrix, AChainThroughExchangedHeadsIsOneRun) {
  expect_one_run({{"pp x cp heads x tp", 8, kPp + kHeads + kTp + kTwoSequences},
                  kAlone,
                  {"FSDP x cp heads x tp", 8, kFsdp + kHeads + kTp}},
                 kLlama + Sets{"model.kv_heads=4"});
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
  const Sets fp32;
  const Sets bf16{"precision.type=bf16", "precision.moments=bf16"};
  for (const auto& [way, precision] :
       {std::pair{Way{"one rank", 1, {}}, fp32}, std::pair{Way{"DDP", 3, {}}, fp32},
        std::pair{Way{"ZeRO-2", 2, kZero2}, fp32}, std::pair{Way{"HSDP", 4, kFsdp + kCopies}, fp32},
        std::pair{Way{"FSDP", 2, kFsdp}, bf16}}) {
    const auto run = [&, way = way, precision = precision](const std::string& name,
                                                           const Sets& sets) {
      const Sets often{"checkpoint.interval=1", "training.steps=6", "checkpoint.keep_last=0"};
      return train_on_threads(path(name), tiny_job(path("data"), kSaved),
                              sets + often + way.sets + precision, way.ranks);
    };
    const auto never = run("never", {"checkpoint.asynchronous=false"});
    const auto behind = run("behind", {"optimizer.state_folder=" + path("state")});
    const auto slow = run("slow", {"checkpoint.staging_mb=0.01", "checkpoint.writer_share=0.05"});
    ASSERT_EQ(never.size(), 6u);
    for (std::size_t i = 0; i < never.size(); ++i) {
      EXPECT_EQ(never[i].loss, behind[i].loss) << way.name << ", step " << i + 1;
      EXPECT_EQ(never[i].loss, slow[i].loss) << way.name << ", step " << i + 1;
      EXPECT_EQ(never[i].grad_norm, behind[i].grad_norm) << way.name << ", step " << i + 1;
    }
    const auto files = saved_files(path("never/checkpoints"));
    EXPECT_EQ(files.size(), 6u * way.ranks);
    for (const char* other : {"behind", "slow"}) {
      EXPECT_EQ(saved_files(path(other) + "/checkpoints"), files) << way.name;
      for (const auto& [file, size] : files) {
        EXPECT_TRUE(bytes_of(path("never/checkpoints/" + file)) ==
                    bytes_of(path(other) + "/checkpoints/" + file))
            << way.name << ": " << file;
      }
    }
    for (const char* name : {"never", "behind", "slow"}) fs::remove_all(path(name));
  }
}

TEST(CheckpointKeys, SayHowIsSaved) {
  const JobConfig config = parse_job(tiny_job("data", 2), "tiny.toml",
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
