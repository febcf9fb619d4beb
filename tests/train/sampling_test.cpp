#include "shoal/train/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/philox.h"

namespace shoal::train::sampling_test {
namespace {

const std::vector<float> kLogits = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f};

std::vector<double> frequencies(const SamplingOptions& options, int draws) {
  std::vector<double> counts(kLogits.size());
  for (int i = 0; i < draws; ++i)
    counts[sample_token(kLogits, options, (i + 0.5) / draws)] += 1.0 / draws;
  return counts;
}

std::vector<double> softmax(double temperature, const std::vector<int>& kept) {
  std::vector<double> p(kLogits.size());
  double total = 0;
  for (const int i : kept) total += p[i] = std::exp(kLogits[i] / temperature);
  for (double& x : p) x /= total;
  return p;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  // An even grid of draws hits each interval to within one grid step.
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-4) << i;
}

TEST(Sampling, FollowsTheDistribution) {
  expect_near(frequencies({}, 10000), softmax(1, {0, 1, 2, 3, 4}));
  expect_near(frequencies({.temperature = 0.5}, 10000), softmax(0.5, {0, 1, 2, 3, 4}));
}

TEST(Sampling, TopKAndTopPKeepTheLikeliest) {
  expect_near(frequencies({.top_k = 3}, 10000), softmax(1, {1, 3, 4}));
  // p(1) = p(3) = 0.379, p(4) = 0.139: two do not reach 0.8, three do.
  expect_near(frequencies({.top_p = 0.8}, 10000), softmax(1, {1, 3, 4}));
  expect_near(frequencies({.top_p = 1e-9}, 10), softmax(1, {1}));
}

TEST(Sampling, WithoutTemperatureTheLikeliest) {
  for (const double uniform : {0.0, 0.5, 0.999999})
    EXPECT_EQ(sample_token(kLogits, {.temperature = 0}, uniform), 1);
}

TEST(Sampling, MostProbableAreThoseOfTheSoftmax) {
  const std::vector<double> p = softmax(1, {0, 1, 2, 3, 4});
  const std::vector<std::int64_t> order = {1, 3, 4, 0, 2};
  for (const std::int64_t count : {0, 1, 3, 5, 9}) {
    const std::vector<TokenProbability> found = most_probable(kLogits, count);
    ASSERT_EQ(found.size(), std::min<std::size_t>(count, 5));
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].token, order[i]);
      EXPECT_NEAR(std::exp(found[i].log_probability), p[order[i]], 1e-12);
    }
  }
  for (std::int64_t token = 0; token < 5; ++token)
    EXPECT_NEAR(std::exp(log_probability(kLogits, token)), p[token], 1e-12);
  // Logits whose exponentials no double holds.
  EXPECT_NEAR(log_probability(std::vector<float>{1e4f, 1e4f}, 0), -std::log(2.0), 1e-12);
}

TEST(Sampling, EndsOfTheIntervalAreTokens) {
  EXPECT_EQ(sample_token(kLogits, {}, 0), 1);
  EXPECT_EQ(sample_token(kLogits, {}, std::nextafter(1.0, 0.0)), 2);
}

TEST(Sampling, RefusesNonsense) {
  EXPECT_THROW(validate({.temperature = -1}), Error);
  EXPECT_THROW(validate({.temperature = INFINITY}), Error);
  EXPECT_THROW(validate({.top_k = -1}), Error);
  EXPECT_THROW(validate({.top_p = 0}), Error);
  EXPECT_THROW(validate({.top_p = 1.5}), Error);
  EXPECT_NO_THROW(validate(SamplingOptions{}));
}

}  // namespace
}  // namespace shoal::train::sampling_test
