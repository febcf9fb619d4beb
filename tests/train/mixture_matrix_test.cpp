#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/train/checkpoint_values.h"
#include "tests/train/runs_of_one_job.h"

// What any mesh with experts saved, any other goes on with: experts that were divided otherwise, or
// not at all, and the biases of routers. Of routers with a sigmoid and with a softmax.
namespace shoal::train::mixture_matrix_test {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 4;  // all compare up to it

class MixtureMatrix : public RunsOfOneJob {
 protected:
  std::string job() const override {
    return fmt::format(R"(
[job]
name = "mixture"
[model]
name = "moe-tiny"
layers = 2
hidden = 16
heads = 4
kv_heads = 2
ffn = 12
experts = 4
vocab = 0
sequence = 16
dropout = 0.1
init_std = 0.2
balance_loss = 0.01
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

struct Router {
  std::string name;
  Sets sets;
};

/// As DeepSeek-V3's, with biases: the first block is dense, the second has experts beside a shared
/// one. As Mixtral's: both have experts alone.
const Router kSigmoid{"sigmoid",
                      {"model.name=deepseek-moe-tiny", "model.shared_ffn=8", "model.dense_ffn=24",
                       "model.router_bias_rate=0.01"}},
    kSoftmax{"softmax", {}};

// Each pair of meshes runs with one of the routers, and each mesh saves and loads both: what a
// checkpoint holds does not depend on who will load it.
TEST_F(MixtureMatrix, AnyMeshGoesOnWithWhatAnyOtherSaved) {
  const std::vector<Way> ways = all_ways();
  const Sets at_once{"checkpoint.asynchronous=false"};
  for (const int number : {0, 1}) {
    const Router& router = number == 0 ? kSigmoid : kSoftmax;
    const auto whole = train_until(kSteps, router.name, ways.front(), router.sets);
    ASSERT_EQ(whole.size(), static_cast<std::size_t>(kSteps));
    expect_steps_differ(whole);
    const std::string bias = "model.blocks.1.mlp.router.bias";
    std::vector<float> moved;
    if (number == 0) {
      moved = values_in_checkpoint(saved(router.name, kSaved), bias);
      // Up or down, by what the experts are sent: which text is trained on decides.
      EXPECT_THAT(moved, testing::Contains(testing::AnyOf(testing::Gt(0.01f), testing::Lt(-0.01f))))
          << "the biases hardly move";
    }
    for (std::size_t f = 0; f < ways.size(); ++f) {
      const std::string from = ways[f].name + ", " + router.name;
      const auto begun = train_until(kSaved, from, ways[f], at_once + router.sets);
      expect_same_losses(begun, {whole.begin(), whole.begin() + kSaved}, 0, from);
      if (number == 0) {
        EXPECT_EQ(values_in_checkpoint(saved(from, kSaved), bias), moved) << from;
      }
      for (std::size_t t = 0; t < ways.size(); ++t) {
        if (t == f || (f + t / 2) % 2 != static_cast<std::size_t>(number)) continue;
        const std::string what = from + ", then " + ways[t].name;
        expect_same_losses(resume_until(kSteps, what, ways[t], from, kSaved,
                                        router.sets + Sets{"checkpoint.interval=0"}),
                           whole, kSaved, what);
        fs::remove_all(path(what));
      }
    }
  }
}

}  // namespace
}  // namespace shoal::train::mixture_matrix_test
