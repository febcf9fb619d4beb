// The same bits of losses, norms and weights whatever ranks are and whatever carries the bytes
// between them. With three ranks and more the order in which a sum is folded shows in its last
// bits, which with two it cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "shoal/base/error.h"
#include "tests/apps/program.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::same_bits_test {
namespace {

namespace fs = std::filesystem;

class SameBits : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_small_text(folder_.path() + "/data");
    job_ = small_job(folder_.path() + "/data", 6);
    std::ofstream(folder_.path() + "/job.toml") << job_;
  }
  std::vector<StepMetrics> on_threads(const std::string& run, const Sets& sets, int ranks) {
    return train_on_threads(folder_.path() + "/" + run, job_, sets, ranks);
  }
  void as_program(const std::string& run, const Sets& sets, const Sets& words) {
    Sets command{apps::testing::shoal_program(), "train", "job.toml", "--run-dir", run};
    for (const std::string& set : sets) command.insert(command.end(), {"--set", set});
    const auto outcome = apps::testing::Program(command + words, folder_.path()).wait();
    ASSERT_EQ(outcome.code, 0) << run << ": " << outcome.err;
  }

  /// Every file of tensors of a run, by its path in the run.
  std::map<std::string, std::string> weights(const std::string& run) const {
    std::map<std::string, std::string> files;
    const fs::path path = folder_.path() + "/" + run;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::ifstream file(entry.path(), std::ios::binary);
      files[entry.path().lexically_relative(path).string()] =
          std::string(std::istreambuf_iterator<char>(file), {});
    }
    return files;
  }
  void expect_same(const std::string& a, const std::string& b) const {
    const auto left = read_metrics(folder_.path() + "/" + a + "/metrics.jsonl");
    const auto right = read_metrics(folder_.path() + "/" + b + "/metrics.jsonl");
    ASSERT_EQ(left.size(), right.size()) << a << " and " << b;
    for (std::size_t i = 0; i < left.size(); ++i) {
      EXPECT_EQ(left[i].loss, right[i].loss) << a << " and " << b << ", step " << i + 1;
      EXPECT_EQ(left[i].grad_norm, right[i].grad_norm) << a << " and " << b << ", step " << i + 1;
      ASSERT_EQ(left[i].evaluation.has_value(), right[i].evaluation.has_value());
      if (left[i].evaluation) {
        EXPECT_EQ(left[i].evaluation->loss, right[i].evaluation->loss) << a << " and " << b;
      }
    }
    const auto tensors = weights(a);
    EXPECT_FALSE(tensors.empty()) << a;
    EXPECT_TRUE(tensors == weights(b)) << a << " and " << b << " saved other weights";
  }

  TemporaryFolder folder_;
  std::string job_;
};

struct Kind {
  std::string name;
  int ranks;
  Sets sets;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"whole", 3, {"training.global_batch_sequences=12", "training.micro_batch=2"}},
      {"sharded", 3, {"training.global_batch_sequences=12", "parallelism.zero_stage=3"}},
      {"hybrid", 4, {"parallelism.zero_stage=2", "parallelism.data_parallel_replicate_degree=2"}}};
  return all;
}

TEST_F(SameBits, ThreadsProcessesAndTcpTrainTheSameWeights) {
  for (const Kind& kind : kinds()) {
    const Sets sets =
        kind.sets + Sets{"parallelism.in_rank_order=true", "parallelism.threads_per_rank=1"};
    const Sets ranks{"--nproc", std::to_string(kind.ranks)};
    on_threads(kind.name + " threads", sets, kind.ranks);
    as_program(kind.name + " processes", sets, ranks);
    as_program(kind.name + " tcp", sets + Sets{"parallelism.transport=tcp"}, ranks);
    expect_same(kind.name + " processes", kind.name + " threads");
    expect_same(kind.name + " processes", kind.name + " tcp");
  }
}

TEST_F(SameBits, ARunThatWasResumedSavesTheSameWeights) {
  for (const Kind& kind : kinds()) {
    const Sets sets = kind.sets + Sets{"checkpoint.interval=2", "checkpoint.asynchronous=false"};
    on_threads(kind.name + " whole", sets, kind.ranks);
    // The step after the fourth fails; the run goes on from the fourth.
    EXPECT_THROW(on_threads(kind.name + " torn",
                            sets + Sets{"debug.fault=error", "debug.fault_step=5"}, kind.ranks),
                 Error);
    on_threads(kind.name + " torn", sets, kind.ranks);
    expect_same(kind.name + " whole", kind.name + " torn");
  }
}

TEST_F(SameBits, AnInterfaceIsUsedOrRefused) {
  const Sets tcp{"parallelism.transport=tcp", "training.steps=4"};
  const Sets ranks{"--nproc", "2"};
  as_program("loopback", tcp + Sets{"parallelism.interface=lo", "parallelism.tls=on"}, ranks);
  Sets command{apps::testing::shoal_program(), "train", "job.toml", "--run-dir", "none"};
  for (const std::string& set : tcp + Sets{"parallelism.interface=nothing9"})
    command.insert(command.end(), {"--set", set});
  const auto refused = apps::testing::Program(command + ranks, folder_.path()).wait();
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.out + refused.err, ::testing::HasSubstr("nothing9"));
}

// Where only rounds cost, all ranks send to all at once, and sums are folded in the order of ranks.
// Where only messages cost, four ranks exchange in two rounds and fold pairs, which rounds
// otherwise.
TEST_F(SameBits, LinkCostsChooseTheAlgorithm) {
  const Sets tcp{"parallelism.transport=tcp", "parallelism.threads_per_rank=1"};
  const Sets ranks{"--nproc", "4"};
  const auto costs = [&](const std::string& name, double latency_s, double message_s) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << fmt::format("[tcp]\ninside_latency_s = {:.9f}\nmessage_s = {:.9f}\n",
                                       latency_s, message_s);
    return "parallelism.link_costs=" + path;
  };
  as_program("rounds", tcp + Sets{costs("rounds.toml", 1, 0)}, ranks);
  as_program("messages", tcp + Sets{costs("messages.toml", 0, 1)}, ranks);
  as_program("one shot", tcp + Sets{"parallelism.algorithms=all_reduce=one_shot"}, ranks);
  expect_same("rounds", "one shot");
  EXPECT_FALSE(weights("rounds") == weights("messages")) << "one algorithm for both costs";
}

}  // namespace
}  // namespace shoal::train::same_bits_test
