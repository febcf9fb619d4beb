#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/train/checkpoint_values.h"
#include "tests/train/runs_of_one_job.h"

// What any mesh with experts saved, any other goes on with: experts that were divided otherwise, or
// not at all, and the biases of routers.
namespace shoal::train::mixture_matrix_test {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 4;  // all compare up to it

class MixtureMatrix : public RunsOfOneJob {
 protected:
  // The first block is dense, the second has experts beside a shared one.
  std::string job() const override {
    return fmt::format(R"(
[job]
name = "mixture"
[model]
name = "deepseek-moe-tiny"
layers = 2
hidden = 16
heads = 4
kv_heads = 2
ffn = 12
experts = 4
shared_ffn = 8
dense_ffn = 24
vocab = 0
sequence = 16
dropout = 0.1
init_std = 0.2
balance_loss = 0.01
router_bias_rate = 0.01
capacity_factor = 1.2
[data]
source = "tokens"
folders = ["{}"]
[training]
global_batch_sequences = 8
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
                       path("data"), kSaved);
  }
};

std::vector<Way> all_ways() {
  const Sets ep2{"parallelism.expert_parallel_degree=2"};
  const Sets ep4{"parallelism.expert_parallel_degree=4"};
  const Sets tp{"parallelism.tensor_parallel_degree=2"};
  const Sets cp{"parallelism.context_parallel_degree=2"};
  const Sets pp{"parallelism.pipeline_parallel_degree=2", "training.micro_batch=2"};
  const Sets fsdp{"parallelism.zero_stage=3"};
  const Sets copies{"parallelism.data_parallel_replicate_degree=2"};
  return {{"one rank", 1, {}},
          {"ep 2", 2, ep2},
          {"ep 4 x ZeRO-2", 4, ep4 + Sets{"parallelism.zero_stage=2"}},
          {"ep 2 x FSDP", 4, ep2 + fsdp},
          {"ep 2 x HSDP", 4, ep2 + fsdp + copies},
          {"ep 4 x tp", 4, ep4 + tp},
          {"ep 2 x pp", 4, ep2 + pp},
          {"ep 2 x cp", 4, ep2 + cp},
          {"ep 4 x cp x tp", 4, ep4 + cp + tp + fsdp},
          {"ep 2 x cp x pp", 4, ep2 + cp + pp}};
}

TEST_F(MixtureMatrix, AnyMeshGoesOnWithWhatAnyOtherSaved) {
  const auto whole = train_until(kSteps, "whole", all_ways().front());
  ASSERT_EQ(whole.size(), static_cast<std::size_t>(kSteps));
  expect_steps_differ(whole);
  const std::string bias = "model.blocks.1.mlp.router.bias";
  const std::vector<float> moved = values_in_checkpoint(saved("whole", kSaved), bias);
  EXPECT_THAT(moved, testing::Contains(testing::Gt(0.01f))) << "the biases hardly move";
  const Sets at_once{"checkpoint.asynchronous=false"};
  for (const Way& from : all_ways()) {
    const auto begun = train_until(kSaved, from.name, from, at_once);
    expect_same_losses(begun, {whole.begin(), whole.begin() + kSaved}, 0, from.name);
    EXPECT_EQ(values_in_checkpoint(saved(from.name, kSaved), bias), moved) << from.name;
    for (const Way& to : all_ways()) {
      const std::string what = from.name + ", then " + to.name;
      expect_same_losses(
          resume_until(kSteps, what, to, from.name, kSaved, {"checkpoint.interval=0"}), whole,
          kSaved, what);
      fs::remove_all(path(what));
    }
  }
}

}  // namespace
}  // namespace shoal::train::mixture_matrix_test
