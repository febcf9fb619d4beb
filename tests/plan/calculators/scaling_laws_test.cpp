#include "shoal/plan/calculators/scaling_laws.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "shoal/base/error.h"
#include "shoal/plan/training.h"

namespace shoal::plan::scaling_laws_test {
namespace {

ScalingLaw scaling_law(const std::string& name) {
  for (const ScalingLaw& law : scaling_laws())
    if (law.name == name) return law;
  throw std::invalid_argument("no law " + name);
}

TEST(ScalingLaws, TheOptimumIsTheSmallestLossOfTheBudget) {
  for (const ScalingLaw& law : scaling_laws()) {
    for (const double flops : {1e19, 5.76e23, 1e26}) {
      const ComputeOptimum best = compute_optimum(law, flops);
      EXPECT_NEAR(6 * best.parameters * best.tokens / flops, 1, 1e-9);
      for (const double factor : {0.5, 0.9, 1.1, 2.0}) {
        EXPECT_GT(law.loss(best.parameters * factor, best.tokens / factor), *best.loss)
            << law.name << " " << flops;
      }
    }
  }
  // Besiroglu et al. find about twenty tokens a parameter at Chinchilla's budget, as Chinchilla
  // (70B, 1.4T) was trained.
  const ComputeOptimum chinchilla = compute_optimum(scaling_law("besiroglu"), 5.76e23);
  EXPECT_NEAR(chinchilla.tokens / chinchilla.parameters, 20, 5);
  EXPECT_NEAR(chinchilla.parameters / 70e9, 1, 0.15);
  ASSERT_TRUE(chinchilla.loss_error);
  EXPECT_FALSE(compute_optimum(scaling_law("hoffmann"), 1e20).loss_error)
      << "its source prints none";
  EXPECT_THROW(compute_optimum(scaling_law("hoffmann"), -1), Error);
  // The paper's own answer by this fit: 40 billion parameters (figure 4). Its rounded constants
  // give 32.
  EXPECT_NEAR(compute_optimum(scaling_law("hoffmann"), 5.76e23).parameters, 40e9, 0.5e9);
  // Besiroglu et al.: parameters grow as the 0.513th power of the budget.
  const ScalingLaw law = scaling_law("besiroglu");
  EXPECT_NEAR(
      std::log(compute_optimum(law, 1e24).parameters / compute_optimum(law, 1e22).parameters) /
          std::log(100),
      0.513, 0.0005);
}

// As the papers print them; Hoffmann's from the source of the paper.
TEST(ScalingLaws, HaveTheirPublishedConstants) {
  const ScalingLaw hoffmann = scaling_law("hoffmann");
  EXPECT_EQ(hoffmann.E, 1.6934);
  EXPECT_EQ(hoffmann.A, 406.4);
  EXPECT_EQ(hoffmann.B, 410.7);
  EXPECT_EQ(hoffmann.alpha, 0.3392);
  EXPECT_EQ(hoffmann.beta, 0.2849);
  const ScalingLaw besiroglu = scaling_law("besiroglu");
  EXPECT_EQ(besiroglu.E, 1.8172);
  EXPECT_EQ(besiroglu.A, 482.01);
  EXPECT_EQ(besiroglu.B, 2085.43);
  EXPECT_EQ(besiroglu.alpha, 0.3478);
  EXPECT_EQ(besiroglu.beta, 0.3658);
  EXPECT_EQ(besiroglu.E_error, 0.03);
  EXPECT_EQ(besiroglu.A_error, 124.58);
  EXPECT_EQ(besiroglu.B_error, 1293.23);
  EXPECT_EQ(besiroglu.alpha_error, 0.02);
  EXPECT_EQ(besiroglu.beta_error, 0.02);
}

// Errors add in squares, each as far as it moves the loss. Differences of 1e-6 of a constant, to
// first order: what is left is about a millionth.
TEST(ScalingLaws, ErrorsOfTheLossAreThoseOfItsConstants) {
  const ScalingLaw law = scaling_law("besiroglu");
  const std::pair<double ScalingLaw::*, double ScalingLaw::*> constants[] = {
      {&ScalingLaw::E, &ScalingLaw::E_error},
      {&ScalingLaw::A, &ScalingLaw::A_error},
      {&ScalingLaw::B, &ScalingLaw::B_error},
      {&ScalingLaw::alpha, &ScalingLaw::alpha_error},
      {&ScalingLaw::beta, &ScalingLaw::beta_error}};
  for (const auto& [parameters, tokens] : {std::pair{1e9, 2e10}, {7e10, 1.4e12}}) {
    double squares = 0;
    for (const auto& [constant, error] : constants) {
      ScalingLaw moved = law;
      const double step = 1e-6 * law.*constant;
      moved.*constant += step;
      const double slope = (moved.loss(parameters, tokens) - law.loss(parameters, tokens)) / step;
      squares += slope * slope * law.*error * law.*error;
    }
    EXPECT_NEAR(*law.loss_error(parameters, tokens) / std::sqrt(squares), 1, 1e-4);
  }
}

// Optima that the papers print elsewhere than at the point that a law goes through.
TEST(ScalingLaws, LawsOfTheOptimumMeetTheirPapers) {
  std::map<std::string, AllocationLaw> laws;
  for (const AllocationLaw& law : allocation_laws()) {
    laws.emplace(law.name, law);
    EXPECT_DOUBLE_EQ(law.exponent + law.token_exponent, 1) << law.name;
    EXPECT_FALSE(law.at(1e20).loss) << law.name;
    if (law.exponent_high > 0) {
      EXPECT_LT(law.exponent_low, law.exponent) << law.name;
      EXPECT_LT(law.exponent, law.exponent_high) << law.name;
    }
    // Kaplan et al. count what training would need at the smallest batch, and process 1.8 times as
    // much.
    const double product = 6 * law.at(1e22).parameters * law.at(1e22).tokens / 1e22;
    EXPECT_NEAR(product, law.name == "kaplan" ? 6 * 1.3e9 * 2e10 / 8.64e19 : 1, 0.09) << law.name;
  }
  EXPECT_THROW(laws.at("kaplan").at(0), Error);
  // Hoffmann et al., table 3 (approach 1): FLOPs, parameters, tokens. Both exponents are printed
  // with two digits.
  const double table_3[][3] = {
      {1.92e19, 400e6, 8e9},   {1.21e20, 1e9, 20.2e9},   {1.23e22, 10e9, 205.1e9},
      {5.76e23, 67e9, 1.5e12}, {3.85e24, 175e9, 3.7e12}, {9.9e24, 280e9, 5.9e12},
      {3.43e25, 520e9, 11e12}, {1.27e26, 1e12, 21.2e12}, {1.3e28, 10e12, 216.2e12}};
  for (const auto& [flops, parameters, tokens] : table_3) {
    EXPECT_NEAR(laws.at("hoffmann-1").at(flops).parameters / parameters, 1, 0.05) << flops;
    EXPECT_NEAR(laws.at("hoffmann-1").at(flops).tokens / tokens, 1, 0.1) << flops;
  }
  EXPECT_NEAR(laws.at("hoffmann-1").at(1e21).parameters / 2.86e9, 1, 0.03) << "appendix D.4";
  EXPECT_DOUBLE_EQ(laws.at("kaplan").at(8.64e19).parameters, 1.3e9) << "one petaflop/s-day";
  // DeepSeek: M = 0.1715 C^0.5243 FLOPs a token and D = 5.8316 C^0.4757 tokens make the budget.
  for (const double flops : {1e18, 1e24}) {
    const ComputeOptimum best = laws.at("deepseek").at(flops);
    EXPECT_NEAR(6 * best.parameters / (0.1715 * std::pow(flops, 0.5243)), 1, 1e-9);
    EXPECT_NEAR(6 * best.parameters * best.tokens / flops, 1, 1e-3);
  }
  EXPECT_DOUBLE_EQ(laws.at("llama-3").at(3.8e25).tokens, 16.55e12);
}

// Llama 3 8B by hand: 2 FLOPs a weight that multiplies a token and 2 L h s for the causal half of
// attention; 2 x 32 blocks x 8 heads x 128 keys and values in 16 bits; each token reads weights and
// cache once.
TEST(ScalingLaws, ServingReadsWeightsAndCache) {
  const ModelSpec spec = *named_model("llama-8b");
  const Cluster cluster = *cluster_preset("h100");
  const double s = 4096;
  const double parameters = 8030261248;
  const double norms = 65 * 4096;
  const InferenceCost cost = inference_cost(spec, cluster, s);
  EXPECT_NEAR(
      cost.flops_per_token / (2 * (parameters - 128256 * 4096.0 - norms) + 2 * 32 * 4096 * s), 1,
      1e-9);
  EXPECT_NEAR(cost.decode_flops - cost.flops_per_token, 2 * 32 * 4096 * s, 1)
      << "queries of the last token meet all keys";
  EXPECT_DOUBLE_EQ(cost.cache_bytes_per_token, 2 * 32 * 8 * 128 * 2);
  EXPECT_DOUBLE_EQ(cost.held_bytes, 2 * parameters + 131072 * s);
  EXPECT_NEAR(cost.decode_s, (2 * parameters + 131072 * s) / 3352e9, 1e-12);
  EXPECT_NEAR(cost.prefill_s,
              cost.flops_per_token * s / (989.4e12 * cluster.device.efficiency.matmul), 1e-12);
}

}  // namespace
}  // namespace shoal::plan::scaling_laws_test
