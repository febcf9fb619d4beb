// Jobs of mixtures of experts: every way to divide them trains as one rank does, and moves the
// biases of routers alike.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shoal/base/error.h"
#include "shoal/train/router_balance.h"
#include "tests/comm/gloo.h"
#include "tests/train/checkpoint_values.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::mixture_training_test {
namespace {

constexpr int kSteps = 6;

std::string mixture_job(const std::string& data) {
  return fmt::format(R"(
[job]
name = "mixture"
[model]
name = "deepseek-moe-tiny"
layers = 3
hidden = 32
heads = 4
kv_heads = 2
ffn = 24
experts = 4
shared_ffn = 16
dense_ffn = 40
vocab = 0
sequence = 32
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
sequence_length = 32
steps = {}
[optimizer]
learning_rate = 1e-3
[parallelism]
timeout_s = 60.0
[metrics]
tensorboard = false
[validation]
interval = 3
batches = 1
[checkpoint]
interval = 0
)",
                     data, kSteps);
}

class MixtureTraining : public ::testing::Test {
 protected:
  void SetUp() override { prepare_small_text(path("data")); }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::vector<StepMetrics> train_as(const std::string& name, const Sets& sets, int ranks) {
    return train_on_threads(path(name), mixture_job(path("data")), sets, ranks);
  }
  std::vector<float> bias_after(const std::string& name, int step) const {
    return values_in_checkpoint(fmt::format("{}/checkpoints/step-{}", path(name), step),
                                "model.blocks.2.mlp.router.bias");
  }

  TemporaryFolder folder_;
};

const std::vector<std::pair<int, Sets>>& ways() {
  static const std::string ep = "parallelism.expert_parallel_degree=";
  static const std::vector<std::pair<int, Sets>> list{
      {2, {"parallelism.arena=true"}},
      {2, {"parallelism.zero_stage=2", "parallelism.arena=false"}},
      {2, {"parallelism.zero_stage=3", ep + "2"}},
      {2, {ep + "2", "activation_checkpoint.mode=selective"}},
      {4, {ep + "4", "activation_checkpoint.mode=full"}},
      {4, {ep + "2", "parallelism.zero_stage=2", "training.micro_batch=1"}},
      {4, {ep + "2", "parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2"}},
      {4, {ep + "4", "parallelism.tensor_parallel_degree=2"}},
      {2, {ep + "2", "parallelism.context_parallel_degree=2"}},
      {4,
       {ep + "4", "parallelism.context_parallel_degree=2", "parallelism.tensor_parallel_degree=2",
        "parallelism.context_parallel_method=ring"}},
      {8,
       {ep + "4", "parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=2",
        "parallelism.zero_stage=2", "training.micro_batch=1"}},
      {4,
       {ep + "2", "parallelism.pipeline_parallel_degree=2",
        "parallelism.pipeline_parallel_schedule=zb-h1", "training.micro_batch=1"}}};
  return list;
}

// fp32 sums in another order, as for dense models; a token that went to another expert, or a bias
// that moved otherwise, would show at 1e-3.
TEST_F(MixtureTraining, EveryMeshTrainsAsOneRank) {
  const auto one = train_as("one", {}, 1);
  ASSERT_EQ(one.size(), static_cast<std::size_t>(kSteps));
  EXPECT_LT(one.back().loss, one.front().loss);
  const std::vector<float> bias = bias_after("one", kSteps);
  float most = 0;
  for (const float value : bias) most = std::max(most, std::abs(value));
  EXPECT_GT(most, 0.015) << "the biases hardly move: the test shows nothing";
  int turn = 0;
  for (const auto& [ranks, sets] : ways()) {
    const std::string what = fmt::format("{} ranks, {}", ranks, fmt::join(sets, " "));
    const std::string name = fmt::format("run-{}", turn++);
    const auto run = train_as(name, sets, ranks);
    ASSERT_EQ(run.size(), one.size()) << what;
    for (std::size_t i = 0; i < run.size(); ++i) {
      EXPECT_NEAR(run[i].loss, one[i].loss, 2e-5 * one[i].loss) << what << ", step " << i + 1;
      EXPECT_NEAR(run[i].grad_norm, one[i].grad_norm, 1e-3 * one[i].grad_norm)
          << what << ", step " << i + 1;
      ASSERT_EQ(run[i].evaluation.has_value(), one[i].evaluation.has_value());
      if (run[i].evaluation) {
        EXPECT_NEAR(run[i].evaluation->loss, one[i].evaluation->loss, 1e-4) << what;
      }
    }
    EXPECT_EQ(bias_after(name, kSteps), bias) << what;
  }
}

// The exchange of tokens too is an operation that every engine has.
TEST_F(MixtureTraining, AnEngineOverGlooTrainsTheSame) {
  const Sets sets{"parallelism.expert_parallel_degree=2", "parallelism.zero_stage=2"};
  const auto over_gloo = [](const auto& body) {
    comm::run_over_gloo(2, std::chrono::seconds(60), body);
  };
  const auto run = train_on(over_gloo, path("gloo"), mixture_job(path("data")), sets);
  const auto ours = train_as("ours", sets, 2);
  ASSERT_EQ(run.size(), ours.size());
  for (std::size_t i = 0; i < run.size(); ++i)
    EXPECT_NEAR(run[i].loss, ours[i].loss, 2e-5 * ours[i].loss) << "step " << i + 1;
  EXPECT_EQ(bias_after("gloo", kSteps), bias_after("ours", kSteps));
}

// Ranks have other numbers of validation samples, and all draw the sample.
TEST_F(MixtureTraining, RanksThatDivideExpertsEvaluateAndDrawInStep) {
  const Sets sets{"validation.interval=2",
                  "training.steps=2",
                  "lr_scheduler.warmup_steps=1",
                  "training.global_batch_sequences=3",
                  "validation.sample_tokens=5",
                  "training.micro_batch=1",
                  "model.experts=6",
                  "checkpoint.interval=0"};
  const auto one = train_as("one", sets, 1);
  const auto three = train_as("three", sets + Sets{"parallelism.expert_parallel_degree=3"}, 3);
  ASSERT_TRUE(one.back().evaluation && three.back().evaluation);
  EXPECT_NEAR(three.back().evaluation->loss, one.back().evaluation->loss, 1e-4);
  EXPECT_EQ(three.back().evaluation->labels, one.back().evaluation->labels);
}

// Expert 0 has more tokens than the mean of 3, expert 1 as many, the others fewer. Each of two
// ranks knows its own choices, and owns a part of the biases.
TEST(RouterBalance, MovesBiasesTowardsTheMeanOfAllRanks) {
  model::ModelSpec spec = *model::named_model("deepseek-moe-tiny");
  spec.layers = 2, spec.experts = 4, spec.router_bias_rate = 0.25;
  comm::run_on_threads({.size = 2, .arena = false}, [&](const comm::Group& world) {
    const auto bias = std::make_shared<nn::Parameter>(std::vector<std::int64_t>{4},
                                                      model::Init::kZeros, 0, false);
    bias->add_name("blocks.1.mlp.router.bias");
    bias->set_requires_grad(false);
    bias->set_adjusted(true);
    bias->materialize();
    bias->reset(Key(1));
    const std::int64_t begin = world.rank() == 0 ? 0 : 3;
    const std::int64_t end = world.rank() == 0 ? 3 : 4;
    RouterBalance balance(spec, {{bias, begin, end, bias->tensor().narrow(0, begin, end - begin)}},
                          world);
    ASSERT_NE(balance.load(), nullptr);
    const bool first = world.rank() == 0;
    // A step that was skipped counts for nothing.
    balance.load()->add("blocks.1.mlp.router", at::tensor({0, 0, 0, 99}, at::kLong));
    balance.drop();
    for (int step = 1; step <= 2; ++step) {
      balance.load()->add("blocks.1.mlp.router", first ? at::tensor({2, 1, 0, 2}, at::kLong)
                                                       : at::tensor({1, 2, 0, 0}, at::kLong));
      if (first) balance.load()->add("blocks.1.mlp.router", at::tensor({3, 0, 1, 0}, at::kLong));
      balance.update();
      const at::Tensor expected = (first ? at::tensor({-0.25f, 0.0f, 0.25f, 0.0f})
                                         : at::tensor({0.0f, 0.0f, 0.0f, 0.25f})) *
                                  step;
      EXPECT_TRUE(at::equal(bias->tensor(), expected)) << bias->tensor();
    }
    // A step whose gradient is not finite has moved nothing, once it is taken back.
    const at::Tensor twice = bias->tensor().clone();
    balance.load()->add("blocks.1.mlp.router", at::tensor({9, 0, 0, 0}, at::kLong));
    balance.update();
    EXPECT_FALSE(at::equal(bias->tensor(), twice));
    balance.take_back();
    EXPECT_TRUE(at::equal(bias->tensor(), twice)) << bias->tensor();
  });
}

TEST_F(MixtureTraining, TrainsInSixteenBits) {
  const auto fp32 = train_as("fp32", {}, 1);
  const auto bf16 =
      train_as("bf16", {"precision.type=bf16", "parallelism.expert_parallel_degree=2"}, 2);
  ASSERT_EQ(bf16.size(), fp32.size());
  EXPECT_NEAR(bf16.back().loss, fp32.back().loss, 0.05);
}

}  // namespace
}  // namespace shoal::train::mixture_training_test
