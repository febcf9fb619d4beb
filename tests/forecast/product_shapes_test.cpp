// Which matmuls a rank runs, counted by hand, and what the planner takes for them.
#include "shoal/forecast/product_shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "shoal/base/error.h"
#include "shoal/plan/operations.h"

namespace shoal::forecast::product_shapes_test {
namespace {

ModelSpec gpt() {
  ModelSpec spec;
  spec.layers = 3;
  spec.hidden = 64;
  spec.heads = 4;
  spec.ffn = 256;
  spec.vocab = 1000;
  spec.sequence = 128;
  return model::complete(spec);
}

double flops(const std::vector<ProductShape>& shapes) {
  double all = 0;
  for (const ProductShape& shape : shapes) all += static_cast<double>(shape.count) * shape.flops();
  return all;
}

TEST(ProductShapes, OfAWholeModel) {
  Training training;
  training.micro_batch = 2;
  const std::vector<ProductShape> expected{{"qkv", 256, 64, 192, 3},
                                           {"out", 256, 64, 64, 3},
                                           {"up", 256, 64, 256, 3},
                                           {"down", 256, 256, 64, 3},
                                           {"output", 256, 64, 1000, 1, false}};
  const auto shapes = product_shapes(gpt(), training);
  EXPECT_EQ(shapes, expected);
  // Two FLOPs for each weight that multiplies a token: 6 with both gradients, less attention.
  const double attention = 12 * 3 * 64;
  const double weights = (model::training_flops_per_token(gpt(), 1, false) - attention) / 6;
  EXPECT_DOUBLE_EQ(flops(shapes), 2 * 256 * weights);
}

TEST(ProductShapes, EqualOnesStandOnce) {
  ModelSpec spec = gpt();
  spec.gated = true;
  spec.kv_heads = 2;
  const auto shapes = product_shapes(spec, Training());
  const auto up = std::find_if(shapes.begin(), shapes.end(),
                               [](const auto& shape) { return shape.layers == "gate, up"; });
  ASSERT_NE(up, shapes.end());
  EXPECT_EQ(up->count, 6);
  EXPECT_EQ(shapes.front(), (ProductShape{"qkv", 128, 64, 128, 3})) << "two heads a key";
}

TEST(ProductShapes, RanksDivideFeaturesAndTheVocabulary) {
  Training training;
  training.degrees.tp = 2;
  const std::vector<ProductShape> expected{{"qkv", 128, 64, 96, 3},
                                           {"out", 128, 32, 64, 3},
                                           {"up", 128, 64, 128, 3},
                                           {"down", 128, 128, 64, 3},
                                           {"output", 128, 64, 500, 1, false}};
  EXPECT_EQ(product_shapes(gpt(), training), expected);
}

TEST(ProductShapes, TheLossTakesItsRowsInBlocks) {
  Training training;
  training.micro_batch = 20;  // 2560 rows
  auto shapes = product_shapes(gpt(), training);
  EXPECT_EQ(shapes.back(), (ProductShape{"output", 512, 64, 1000, 1, false}))
      << "what two blocks leave";
  shapes.pop_back();
  EXPECT_EQ(shapes.back(), (ProductShape{"output", 1024, 64, 1000, 2, false}));
  training.micro_batch = 16;
  EXPECT_EQ(product_shapes(gpt(), training).back(),
            (ProductShape{"output", 1024, 64, 1000, 2, false}));
}

TEST(ProductShapes, OfExperts) {
  ModelSpec spec = gpt();
  spec.experts = 8;
  spec.experts_per_token = 2;
  spec.dense_layers = 1;
  spec.dense_ffn = 100;
  Training training;
  training.degrees.ep = 2;
  training.expert_imbalance = 1.5;
  const auto shapes = product_shapes(spec, training);
  const auto named = [&](const std::string& layers) {
    const auto found = std::find_if(shapes.begin(), shapes.end(),
                                    [&](const auto& shape) { return shape.layers == layers; });
    return found == shapes.end() ? ProductShape() : *found;
  };
  EXPECT_EQ(named("router"), (ProductShape{"router", 128, 64, 8, 2, false}));
  // 128 tokens visit 2 of 8 experts: 32 rows each, and the busiest rank has half more of its four.
  EXPECT_EQ(named("expert up"), (ProductShape{"expert up", 96, 64, 256, 8, false}));
  EXPECT_EQ(named("up"), (ProductShape{"up", 128, 64, 100, 1}));
}

TEST(ProductShapes, OfAPerceptron) {
  ModelSpec spec;
  spec.family = Family::kMlp;
  spec.inputs = 64;
  spec.widths = {32, 32};
  spec.outputs = 10;
  Training training;
  training.micro_batch = 16;
  EXPECT_EQ(
      product_shapes(spec, training),
      (std::vector<ProductShape>{
          {"layers.0", 16, 64, 32, 1}, {"layers.1", 16, 32, 32, 1}, {"layers.2", 16, 32, 10, 1}}));
}

TEST(ProductShapes, ThePlanCountsByTheKernelOfLinearLayers) {
  Cluster cluster = *plan::cluster_preset("cpu");
  ProductShape shape{"up", 100, 10, 20, 1};
  const auto planned = [&](ProductPass pass, ElementType type, bool by_kernels) {
    return planned_product_s(cluster, shape, pass, type, by_kernels);
  };
  const double by_device = plan::product_s(cluster, ElementType::kF32, 40'000);
  cluster.kernels["linear"] = {.flop_s = 1};
  cluster.kernels["linear_backward"] = {.flop_s = 3};
  EXPECT_EQ(planned(ProductPass::kForward, ElementType::kF32, false), by_device);
  // A kernel of the backward pass has both gradients, of 40 kFLOPs each.
  EXPECT_EQ(planned(ProductPass::kForward, ElementType::kF32, true),
            cluster.kernels["linear"].seconds(plan::linear_work(100, 10, 20)));
  EXPECT_EQ(planned(ProductPass::kWeightGradient, ElementType::kF32, true),
            cluster.kernels["linear_backward"].seconds(plan::linear_work(100, 10, 20)) / 2);
  EXPECT_EQ(planned(ProductPass::kForward, ElementType::kBF16, true), std::nullopt);
  EXPECT_THROW(planned(ProductPass::kForward, ElementType::kF64, false), Error) << "no such peak";
  // The kernel of the loss has more than its matmuls.
  shape.linear = false;
  EXPECT_EQ(planned(ProductPass::kForward, ElementType::kF32, true), std::nullopt);
  EXPECT_EQ(planned(ProductPass::kForward, ElementType::kF32, false), by_device);
}

TEST(ProductShapes, KernelsCountWhereAPlanSumsThem) {
  Cluster cluster = *plan::cluster_preset("cpu");
  Training training;
  training.precision = "fp32";
  training.states = plan::precision("fp32")->state;
  EXPECT_FALSE(planned_by_kernels(gpt(), training, cluster, ElementType::kF32));
  cluster.kernels["linear"] = {.flop_s = 1};
  EXPECT_TRUE(planned_by_kernels(gpt(), training, cluster, ElementType::kF32));
  EXPECT_FALSE(planned_by_kernels(gpt(), training, cluster, ElementType::kBF16));
  cluster.kernels["linear_bf16"] = {.flop_s = 1};
  EXPECT_TRUE(planned_by_kernels(gpt(), training, cluster, ElementType::kBF16));
  ModelSpec perceptron;
  perceptron.family = Family::kMlp;
  EXPECT_FALSE(planned_by_kernels(perceptron, training, cluster, ElementType::kF32));
  cluster.hosts = 2;
  EXPECT_FALSE(planned_by_kernels(gpt(), training, cluster, ElementType::kF32));
}

TEST(ProductShapes, ThoseOfACalibrationTellStartFromRate) {
  double least = 1e300;
  double most = 0;
  for (const ProductShape& shape : calibration_shapes()) {
    least = std::min(least, shape.flops());
    most = std::max(most, shape.flops());
  }
  EXPECT_GT(most, 1000 * least);
}

}  // namespace
}  // namespace shoal::forecast::product_shapes_test
