#include "shoal/train/step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::train::step_test {
namespace {

/// y = 2 x0 - x1 + 0.5 at random points.
class Plane final : public DataSource {
 public:
  Task task() const override { return Task::kRegression; }
  DataSizes sizes() const override { return {.vocab = 0, .inputs = 2, .outputs = 1}; }
  std::int64_t samples_per_epoch() const override { return 64; }
  Batch training(std::int64_t first, std::int64_t count) const override {
    Batch batch{at::empty({count, 2}, at::kFloat), at::empty({count, 1}, at::kFloat), 0};
    const Key key = shoal::Key(4).child("points");
    for (std::int64_t i = 0; i < count; ++i) {
      const double a = key.normal(2 * (first + i));
      const double b = key.normal(2 * (first + i) + 1);
      batch.inputs.data_ptr<float>()[2 * i] = static_cast<float>(a),
                                         batch.inputs.data_ptr<float>()[2 * i + 1] =
                                             static_cast<float>(b);
      batch.labels.data_ptr<float>()[i] = static_cast<float>(2 * a - b + 0.5);
    }
    return batch;
  }
  std::int64_t evaluation_samples(const std::string&) const override { return 0; }
  Batch evaluation(const std::string&, const std::vector<std::int64_t>&) const override {
    return {};
  }
  std::uint64_t fingerprint() const override { return 0; }
};

std::shared_ptr<nn::Model> linear_model() {
  model::ModelSpec spec;
  spec.name = "plane", spec.family = model::Family::kMlp, spec.inputs = 2, spec.outputs = 1;
  auto model = nn::make_model(spec, nn::Loss::kSquaredError);
  model->materialize();
  model->reset_parameters(Key(1));
  return model;
}

TEST(RankBatch, RanksAndMicroBatchesShareTheSamples) {
  const Plane data;
  const Batch whole = data.training(16, 8);
  for (const int ranks : {1, 2, 4}) {
    for (const std::int64_t micro : {1, 2}) {
      std::int64_t row = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const RankBatch batch = rank_batch(
            data, 16, {.global = 8, .micro_batch = micro, .accumulation = 8 / ranks / micro}, rank);
        EXPECT_EQ(batch.first_sample, row);
        for (const Batch& part : batch.micro_batches) {
          for (std::int64_t i = 0; i < part.inputs.size(0); ++i, ++row)
            EXPECT_TRUE(part.inputs.select(0, i).equal(whole.inputs.select(0, row)));
        }
      }
      EXPECT_EQ(row, 8);
    }
  }
}

TEST(CountLabels, LeavesOutWhatIsIgnored) {
  const at::Tensor labels = at::full({2, 3}, 7, at::kLong);
  labels.data_ptr<std::int64_t>()[4] = kIgnoredLabel;
  EXPECT_EQ(count_labels({{at::Tensor(), labels, 0}, {at::Tensor(), labels, 0}}), 10);
  EXPECT_EQ(count_labels({{at::Tensor(), at::full({4, 2}, 0.5), 0}}), 8);
}

// One step of SGD on a linear model with squared error, against the closed form in double.
TEST(TrainingStep, OneStepIsTheClosedForm) {
  const Plane data;
  const auto model = linear_model();
  const auto weight = model->find_parameter("layers.0.weight");
  const auto bias = model->find_parameter("layers.0.bias");
  double w[2] = {weight->tensor().data_ptr<float>()[0], weight->tensor().data_ptr<float>()[1]};
  double b = bias->tensor().data_ptr<float>()[0];
  const auto optimizer = optim::make_optimizer(slices_of(*model), optim::SgdOptions{});
  const auto reduction = parallel::reduce_after_backward(*model, {});
  TrainingStep step(*model, *optimizer, *reduction, {}, Key(2));
  const BatchPlan plan{.global = 8, .micro_batch = 2, .accumulation = 4};
  const StepResult result =
      step.run(rank_batch(data, 0, plan, 0),
               {.step = 0, .learning_rate = 0.05, .clip_norm = 0, .labels = 8});

  const Batch whole = data.training(0, 8);
  double loss = 0;
  double gw[2] = {0, 0};
  double gb = 0;
  for (int i = 0; i < 8; ++i) {
    const float* x = whole.inputs.data_ptr<float>() + 2 * i;
    const double error = w[0] * x[0] + w[1] * x[1] + b - whole.labels.data_ptr<float>()[i];
    loss += error * error / 8, gw[0] += 2 * error * x[0] / 8, gw[1] += 2 * error * x[1] / 8,
        gb += 2 * error / 8;
  }
  // A few float roundings.
  EXPECT_NEAR(result.loss, loss, 1e-6 * loss);
  EXPECT_NEAR(result.grad_norm, std::sqrt(gw[0] * gw[0] + gw[1] * gw[1] + gb * gb), 1e-5);
  EXPECT_NEAR(weight->tensor().data_ptr<float>()[0], w[0] - 0.05 * gw[0], 1e-6);
  EXPECT_NEAR(weight->tensor().data_ptr<float>()[1], w[1] - 0.05 * gw[1], 1e-6);
  EXPECT_NEAR(bias->tensor().data_ptr<float>()[0], b - 0.05 * gb, 1e-6);
}

// The halves of a step: parts that others have computed are added up between them.
TEST(TrainingStep, AStepInPartsIsTheWholeStep) {
  const Plane data;
  const auto whole = linear_model();
  const auto parts = linear_model();
  const StepInput input{.step = 0, .learning_rate = 0.05, .clip_norm = 0.5, .labels = 8};
  StepResult results[2];
  for (const auto& model : {whole, parts}) {
    const auto optimizer = optim::make_optimizer(slices_of(*model), optim::SgdOptions{});
    const auto reduction = parallel::reduce_after_backward(*model, {});
    TrainingStep step(*model, *optimizer, *reduction, {}, Key(2));
    const RankBatch batch =
        rank_batch(data, 0, {.global = 8, .micro_batch = 2, .accumulation = 4}, 0);
    if (model == whole) {
      results[0] = step.run(batch, input);
      continue;
    }
    StepSum sum;
    for (const std::size_t i : {0, 3, 1, 2}) {
      RankBatch part{{batch.micro_batches[i]}, static_cast<std::int64_t>(2 * i)};
      const StepSum one = step.accumulate(part, input);
      sum.loss += one.loss;
      if (sum.gradients.empty()) {
        for (const at::Tensor& gradient : one.gradients) sum.gradients.push_back(gradient.clone());
      } else {
        for (std::size_t g = 0; g < sum.gradients.size(); ++g)
          sum.gradients[g].add_(one.gradients[g]);
      }
      model->clear_gradients();
    }
    const StepSum nothing = step.accumulate({}, input);
    EXPECT_EQ(nothing.loss, 0);
    for (const at::Tensor& gradient : nothing.gradients) EXPECT_FALSE(gradient.defined());
    results[1] = step.update(std::move(sum), input);
  }
  // Float additions in another order.
  EXPECT_NEAR(results[1].loss, results[0].loss, 1e-6 * results[0].loss);
  EXPECT_NEAR(results[1].grad_norm, results[0].grad_norm, 1e-5 * results[0].grad_norm);
  const auto weight = [](const auto& model) {
    return model->find_parameter("layers.0.weight")->tensor().detach();
  };
  EXPECT_TRUE(weight(parts).allclose(weight(whole), 1e-6, 1e-7));
}

TEST(TrainingStep, ClippingScalesTheUpdate) {
  const Plane data;
  const auto free = linear_model();
  const auto clipped = linear_model();
  const at::Tensor before = free->find_parameter("layers.0.weight")->tensor().detach().clone();
  for (const auto& [model, clip] : {std::pair{free, 0.0}, std::pair{clipped, 0.1}}) {
    const auto optimizer = optim::make_optimizer(slices_of(*model), optim::SgdOptions{});
    const auto reduction = parallel::reduce_after_backward(*model, {});
    TrainingStep step(*model, *optimizer, *reduction, {}, Key(2));
    const auto result =
        step.run(rank_batch(data, 0, {.global = 8, .micro_batch = 8, .accumulation = 1}, 0),
                 {.step = 0, .learning_rate = 0.05, .clip_norm = clip, .labels = 8});
    ASSERT_GT(result.grad_norm, 0.1);
    if (clip == 0) continue;
    const at::Tensor whole = free->find_parameter("layers.0.weight")->tensor().detach().sub(before);
    const at::Tensor part =
        clipped->find_parameter("layers.0.weight")->tensor().detach().sub(before);
    EXPECT_TRUE(part.allclose(whole.mul(clip / result.grad_norm), 1e-4, 1e-7));
  }
}

/// Writes down when passes begin; sums nothing, as on one rank.
class WrittenDown final : public parallel::GradientReduction {
 public:
  WrittenDown(nn::Model& model, std::vector<std::string>& calls)
      : calls_(calls), owned_(parallel::whole_ranges(model.parameters())) {}
  void begin(std::int64_t index, std::int64_t count) override {
    calls_.push_back(fmt::format("begin {}/{}", index, count));
  }
  void finish() override { calls_.emplace_back("finish"); }
  const std::vector<parallel::OwnedRange>& owned() const override { return owned_; }
  std::vector<at::Tensor> gradients() const override { return parallel::whole_gradients(owned_); }

 private:
  std::vector<std::string>& calls_;
  std::vector<parallel::OwnedRange> owned_;
};

// A sharding gathers when the model is entered, hooks of the model itself among them, and ZeRO-2
// reduces when the next micro-batch begins.
TEST(TrainingStep, MicroBatchesRunInTurnAndTheReductionKnowsBeforeEach) {
  const Plane data;
  const auto model = linear_model();
  std::vector<std::string> calls;
  model->on_pre_forward([&](nn::Module&, const at::Tensor&, const nn::Context& context) {
    calls.push_back(fmt::format("forward {}", context.micro_batch));
    return at::Tensor();
  });
  model->on_post_forward([&](nn::Module&, const at::Tensor& loss, const nn::Context& context) {
    loss.register_hook([&calls, number = context.micro_batch](const at::Tensor&) {
      calls.push_back(fmt::format("backward {}", number));
    });
    return at::Tensor();
  });
  const auto optimizer = optim::make_optimizer(slices_of(*model), optim::SgdOptions{});
  WrittenDown reduction(*model, calls);
  TrainingStep step(*model, *optimizer, reduction, {}, Key(2));
  // Steps of one TrainingStep may have different numbers of micro-batches.
  for (const std::int64_t count : {3, 1}) {
    calls.clear();
    const BatchPlan plan{.global = 2 * count, .micro_batch = 2, .accumulation = count};
    step.run(
        rank_batch(data, 0, plan, 0),
        {.step = 0, .learning_rate = 0.05, .clip_norm = 0, .labels = static_cast<double>(count)});
    std::vector<std::string> expected;
    for (std::int64_t i = 0; i < count; ++i) {
      expected.push_back(fmt::format("begin {}/{}", i, count));
      expected.push_back(fmt::format("forward {}", i));
      expected.push_back(fmt::format("backward {}", i));
    }
    expected.emplace_back("finish");
    EXPECT_EQ(calls, expected);
  }
}

TEST(TrainingStep, ANonFiniteLossChangesNothing) {
  const Plane data;
  const auto model = linear_model();
  const at::Tensor before = model->find_parameter("layers.0.weight")->tensor().detach().clone();
  const auto optimizer = optim::make_optimizer(slices_of(*model), optim::SgdOptions{});
  const auto reduction = parallel::reduce_after_backward(*model, {});
  TrainingStep step(*model, *optimizer, *reduction, {}, Key(2));
  const RankBatch batch =
      rank_batch(data, 0, {.global = 8, .micro_batch = 8, .accumulation = 1}, 0);
  batch.micro_batches[0].inputs.data_ptr<float>()[3] = INFINITY;
  EXPECT_THROW(step.run(batch, {.step = 0, .learning_rate = 0.05, .clip_norm = 0, .labels = 8}),
               Error);
  EXPECT_TRUE(model->find_parameter("layers.0.weight")->tensor().equal(before));
}

}  // namespace
}  // namespace shoal::train::step_test
