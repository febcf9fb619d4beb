#include "shoal/plan/calculators/calculations.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shoal/base/error.h"

namespace shoal::plan::calculations_test {
namespace {

using ::testing::HasSubstr;

TEST(Calculations, SayWhatTheyCompute) {
  EXPECT_EQ(iterations_per_epoch(50000, 32, 4).value, 391);
  EXPECT_THAT(iterations_per_epoch(50000, 32, 4).line, HasSubstr("= 391 iterations"));
  EXPECT_EQ(collectives_per_run(50000, 32, 4, 10).value, 3910);
  EXPECT_DOUBLE_EQ(exchange_per_epoch(1000, 10, 4, 1e6, {1e-3, 1e-8}).value,
                   25 * (6e-3 + 1.5 * 1e-2));
  EXPECT_THAT(ring_against_tree(64, 8, {1e-5, 1e-10}).line, HasSubstr("the tree wins"));
  EXPECT_THAT(ring_against_tree(8, 1e9, {1e-5, 1e-10}).line, HasSubstr("the ring wins"));
  EXPECT_DOUBLE_EQ(zero_memory(7.5e9, 1, 64).value, 7.5e9 * (4 + 12.0 / 64));
  EXPECT_THROW(iterations_per_epoch(-1, 32, 4), Error);
  EXPECT_THROW(exchange_per_epoch(1000, 10, 4, 1e6, {1e-3, INFINITY}), Error);
  EXPECT_THROW(zero_memory(1e9, 5, 4), Error);
}

// Students read the lines beside the formulas: each figure in its place.
TEST(Calculations, ShowTheFormulaWithItsFigures) {
  EXPECT_EQ(iterations_per_epoch(50000, 32, 4).line,
            "ceil(50000 samples / (32 a rank x 4 ranks)) = 391 iterations an epoch");
  EXPECT_EQ(collectives_per_run(50000, 32, 4, 10).line,
            "391 iterations an epoch x 10 epochs x 1 all-reduce of the gradients = 3910 "
            "collectives");
  EXPECT_EQ(exchange_per_epoch(1000, 10, 4, 1e6, {1e-3, 1e-8}).line,
            "25 iterations x [2 (4 - 1) x 0.001 s + 2 (4 - 1)/4 x 1e+06 B / 1e+08 B/s = 0.021 s] "
            "= 0.525 s an epoch");
  const Calculation ring = ring_against_tree(8, 1e9, {1e-5, 1e-10});
  EXPECT_DOUBLE_EQ(ring.value, 14e-5 + 0.175);
  EXPECT_EQ(ring.line,
            "ring 2 (n-1) a + 2 (n-1)/n S b = 0.1751 s, tree 2 ceil(log2 n) (a + S b) = 0.6001 s: "
            "the ring wins (n = 8, a = 1e-05 s, S = 1e+09 B, 1/b = 1e+10 B/s)");
  EXPECT_DOUBLE_EQ(ring_against_tree(64, 8, {1e-5, 1e-10}).value, 12 * (1e-5 + 8e-10));
  const char* const stages[] = {"2 + 2 + 12", "2 + 2 + 12/n", "2 + 14/n", "16/n"};
  const double bytes[] = {16, 4 + 12.0 / 8, 2 + 14.0 / 8, 2};
  for (int stage = 0; stage < 4; ++stage) {
    const Calculation memory = zero_memory(1e9, stage, 8);
    EXPECT_DOUBLE_EQ(memory.value, 1e9 * bytes[stage]);
    EXPECT_EQ(memory.line, fmt::format("1e+09 parameters x ({}) bytes, n = 8 = {:.4g} GB a rank",
                                       stages[stage], bytes[stage]));
  }
  const Calculation offload = offload_efficiency(10, 1e9, 3e10);
  EXPECT_DOUBLE_EQ(offload.value, 0.25);
  EXPECT_EQ(offload.line,
            "10 FLOP/B x 1e+09 B/s / (10 FLOP/B x 1e+09 B/s + 3e+10 FLOP/s) = 25.0 % of the peak");
  const Calculation tokens = ring_attention_tokens(1e9, 3.5e9);
  EXPECT_DOUBLE_EQ(tokens.value, 3.5);
  EXPECT_EQ(tokens.line, "4 h c^2 / 3.5e+09 FLOP/s >= 4 h c / 1e+09 B/s from c = 4 tokens a rank");
  const Calculation pieces = best_checkpoints(48, 3, 1);
  EXPECT_DOUBLE_EQ(pieces.value, 12);
  EXPECT_EQ(pieces.line, "sqrt(48 blocks x 3 B inside one / 1 B of its input) = 12.0 pieces");
  const WorkingSet set{
      .hidden = 1000, .heads = 10, .samples = 2, .length = 100, .layers = 8, .blocks = 4};
  const Calculation working = offload_working_set(set);
  EXPECT_DOUBLE_EQ(working.value, 16e6 + 2 * 100 * 4 * (16e3 + 2 * 10 * 100));
  EXPECT_EQ(working.line,
            "4 h x 4 h = 0.016 GB of parameters and gradients, b s c (16 h + 2 a s) = 0.0144 GB of "
            "activations: 0.0304 GB on the device; checkpoints 2 b s h L / c = 0.0008 GB elsewhere "
            "(h = 1000, a = 10, b = 2, s = 100, L = 8, c = 4)");
}

TEST(Calculations, EveryFigureMustBePositive) {
  EXPECT_THROW(iterations_per_epoch(0, 32, 4), Error);
  EXPECT_THROW(iterations_per_epoch(1, 0, 4), Error);
  EXPECT_THROW(iterations_per_epoch(1, 32, 0), Error);
  EXPECT_THROW(iterations_per_epoch(1, std::int64_t{1} << 40, std::int64_t{1} << 40), Error);
  EXPECT_THROW(collectives_per_run(1, 32, 4, 0), Error);
  EXPECT_THROW(collectives_per_run(std::int64_t{1} << 50, 1, 1, 8), Error);
  EXPECT_THROW(exchange_per_epoch(1, 1, 4, 0, {0, 1}), Error);
  EXPECT_THROW(exchange_per_epoch(1, 1, 4, 1, {-1, 1}), Error);
  EXPECT_THROW(exchange_per_epoch(1, 1, 4, 1, {0, 0}), Error);
  EXPECT_THROW(ring_against_tree(0, 1, {0, 1}), Error);
  EXPECT_THROW(ring_against_tree(2, 0, {0, 1}), Error);
  EXPECT_THROW(ring_against_tree(2, 1, {0, -1}), Error);
  EXPECT_THROW(zero_memory(0, 1, 4), Error);
  EXPECT_THROW(zero_memory(1, 1, 0), Error);
  EXPECT_THROW(zero_memory(1, -1, 4), Error);
  EXPECT_THROW(zero_memory(1, 4, 4), Error);
  EXPECT_THROW(offload_efficiency(0, 1, 1), Error);
  EXPECT_THROW(offload_efficiency(1, 0, 1), Error);
  EXPECT_THROW(offload_efficiency(1, 1, 0), Error);
  EXPECT_THROW(ring_attention_tokens(0, 1), Error);
  EXPECT_THROW(ring_attention_tokens(1, 0), Error);
  EXPECT_THROW(best_checkpoints(0, 1, 1), Error);
  EXPECT_THROW(best_checkpoints(1, 0, 1), Error);
  EXPECT_THROW(best_checkpoints(1, 1, 0), Error);
  for (double WorkingSet::*const figure :
       {&WorkingSet::hidden, &WorkingSet::heads, &WorkingSet::samples, &WorkingSet::length,
        &WorkingSet::layers, &WorkingSet::blocks}) {
    WorkingSet set{1, 1, 1, 1, 1, 1};
    EXPECT_NO_THROW(offload_working_set(set));
    set.*figure = 0;
    EXPECT_THROW(offload_working_set(set), Error);
  }
}

}  // namespace
}  // namespace shoal::plan::calculations_test
