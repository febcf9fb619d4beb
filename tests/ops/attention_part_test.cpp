// Attention of queries to ranges of keys, in parts and whole, against one score for every pair.
#include "shoal/ops/attention_part.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ops/key_ranges.h"
#include "tests/every_target.h"
#include "tests/ops/dense_attention.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::attention_part_test {
namespace {

// The sums of fp32 run over up to 300 keys and 400 queries in another order than those of fp64.
constexpr double kFloatTolerance = 2e-5;
constexpr double kDoubleTolerance = 1e-10;

double tolerance_of(at::ScalarType type) {
  return type == at::kDouble ? kDoubleTolerance : kFloatTolerance;
}

struct Shape {
  std::int64_t samples, queries, keys, groups, per, size;
};

HeadTensors some_heads(const Shape& s, at::ScalarType type) {
  const auto made = [&](at::IntArrayRef sizes, int seed) {
    return (leaf(sizes, seed).detach() * 2).to(type);
  };
  return {made({s.samples, s.queries, s.groups, s.per, s.size}, 1),
          made({s.samples, s.keys, s.groups, s.size}, 2),
          made({s.samples, s.keys, s.groups, s.size}, 3)};
}

at::Tensor some_gradient(const HeadTensors& heads) {
  return leaf({heads.q.size(0), heads.q.size(1),
               heads.q.size(2) * heads.q.size(3) * heads.q.size(4)},
              4)
      .detach()
      .to(heads.q.scalar_type());
}

/// Any ranges, a fifth of them empty; some of those are reversed.
at::Tensor some_ranges(std::int64_t samples, std::int64_t queries, std::int64_t keys, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  at::Tensor ranges = at::empty({samples, queries, 2}, at::kInt);
  auto* out = ranges.mutable_data_ptr<std::int32_t>();
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int32_t>(random() % static_cast<unsigned>(n));
  };
  for (std::int64_t i = 0; i < samples * queries; ++i) {
    const std::int32_t a = below(keys + 1);
    const std::int32_t b = below(keys + 1);
    out[2 * i] = std::min(a, b);
    out[2 * i + 1] = std::max(a, b);
    if (below(5) == 0) std::swap(out[2 * i], out[2 * i + 1]);
  }
  return ranges;
}

HeadTensors places_like(const HeadTensors& heads) {
  // What is not overwritten shows as no number.
  return {at::full_like(heads.q, NAN), at::full_like(heads.k, NAN), at::full_like(heads.v, NAN)};
}

HeadTensors gradients_of(const HeadTensors& heads, const at::Tensor& ranges,
                         const AttentionPart& whole, const at::Tensor& d_out) {
  const HeadTensors gradients = places_like(heads);
  attention_part_backward(heads, ranges, whole, d_out, gradients);
  return gradients;
}

struct Reference {
  AttentionPart result;
  HeadTensors gradients;
};

Reference reference_of(const HeadTensors& heads, const at::Tensor& visible,
                       const at::Tensor& d_out) {
  const auto leaf_of = [](const at::Tensor& x) {
    return x.detach().to(at::kDouble, false, true).set_requires_grad(true);
  };
  const HeadTensors leaves{leaf_of(heads.q), leaf_of(heads.k), leaf_of(heads.v)};
  const AttentionPart result = dense_attention(leaves, visible);
  result.out.backward(d_out.to(at::kDouble));
  return {{result.out.detach(), result.lse}, {leaves.q.grad(), leaves.k.grad(), leaves.v.grad()}};
}

void expect_close(const HeadTensors& found, const HeadTensors& expected, double tolerance) {
  EXPECT_LE(apart(found.q, expected.q), tolerance) << "dq";
  EXPECT_LE(apart(found.k, expected.k), tolerance) << "dk";
  EXPECT_LE(apart(found.v, expected.v), tolerance) << "dv";
}

void expect_dense(const HeadTensors& heads, const at::Tensor& ranges) {
  const at::ScalarType type = heads.q.scalar_type();
  const at::Tensor d_out = some_gradient(heads);
  const Reference expected = reference_of(heads, visible_in(ranges, heads.k.size(1)), d_out);
  const AttentionPart found = attention_part(heads, ranges);
  EXPECT_EQ(found.out.scalar_type(), type);
  EXPECT_EQ(found.lse.scalar_type(), type);
  EXPECT_LE(apart(found.out, expected.result.out), tolerance_of(type)) << "out";
  EXPECT_LE(apart(found.lse, expected.result.lse), tolerance_of(type)) << "lse";
  expect_close(gradients_of(heads, ranges, found, d_out), expected.gradients, tolerance_of(type));
}

const std::vector<Shape> kShapes{{1, 1, 1, 1, 1, 8},      {2, 7, 5, 2, 3, 8},
                                 {2, 5, 70, 1, 1, 24},    {2, 205, 300, 2, 2, 20},
                                 {1, 400, 130, 1, 3, 16}, {3, 193, 193, 1, 1, 64}};

void expect_dense_for_every_rule(at::ScalarType type) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.queries << " queries, " << shape.keys << " keys, "
                                    << shape.per << " heads a group");
    const HeadTensors heads = some_heads(shape, type);
    for (const std::int64_t rules : {std::int64_t{1}, shape.samples})
      expect_dense(heads, some_ranges(rules, shape.queries, shape.keys, 7));
    for (const std::int64_t offset : {-shape.queries, -shape.queries / 2, std::int64_t{0},
                                      shape.keys - shape.queries, shape.keys}) {
      SCOPED_TRACE(testing::Message() << "causal, offset " << offset);
      expect_dense(heads, causal_ranges(shape.queries, shape.keys, offset));
    }
  }
}

TEST(AttentionPart, IsTheDenseSoftmaxOfDoubles) { expect_dense_for_every_rule(at::kDouble); }

TEST(AttentionPart, IsTheDenseSoftmaxOfFloatsOnEveryTarget) {
  on_every_target([](const std::string& target) {
    SCOPED_TRACE(target);
    expect_dense_for_every_rule(at::kFloat);
  });
}

// 500 rows: whole blocks without keys before, between and behind.
TEST(AttentionPart, OfRowsWithoutKeysIsZeroAndSoAreTheirGradients) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const HeadTensors heads = some_heads({2, 500, 40, 1, 2, 8}, type);
    at::Tensor ranges = at::zeros({1, 500, 2}, at::kInt);
    ranges[0][250][0] = 3;
    ranges[0][250][1] = 9;
    expect_dense(heads, ranges);
    const at::Tensor d_out = some_gradient(heads);
    const AttentionPart one = attention_part(heads, ranges);
    EXPECT_TRUE(one.out.narrow(1, 0, 250).eq(0).all().item<bool>());
    EXPECT_TRUE(one.lse.narrow(2, 251, 249).eq(-INFINITY).all().item<bool>());
    const HeadTensors gradients = gradients_of(heads, ranges, one, d_out);
    EXPECT_TRUE(gradients.q.narrow(1, 251, 249).eq(0).all().item<bool>());
    EXPECT_TRUE(gradients.k.narrow(1, 9, 31).eq(0).all().item<bool>());

    const at::Tensor none = at::zeros({2, 500, 2}, at::kInt);
    const AttentionPart nothing = attention_part(heads, none);
    EXPECT_TRUE(nothing.out.eq(0).all().item<bool>());
    EXPECT_TRUE(nothing.lse.eq(-INFINITY).all().item<bool>());
    const HeadTensors zeros = gradients_of(heads, none, nothing, d_out);
    for (const at::Tensor& x : {zeros.q, zeros.k, zeros.v}) EXPECT_TRUE(x.eq(0).all().item<bool>());
  }
}

TEST(AttentionPart, TakesNoKeysNoQueriesAndNoSamples) {
  for (const Shape& shape :
       {Shape{2, 5, 0, 1, 2, 8}, Shape{2, 0, 5, 1, 2, 8}, Shape{0, 5, 5, 1, 2, 8}}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const HeadTensors heads = some_heads(shape, type);
      const at::Tensor ranges = causal_ranges(shape.queries, shape.keys);
      const AttentionPart found = attention_part(heads, ranges);
      EXPECT_EQ(found.out.sizes(),
                (std::vector<std::int64_t>{shape.samples, shape.queries, 2 * 8}));
      EXPECT_TRUE(found.out.eq(0).all().item<bool>());
      const HeadTensors gradients = gradients_of(heads, ranges, found, found.out);
      EXPECT_TRUE(gradients.k.eq(0).all().item<bool>());
      EXPECT_TRUE(gradients.q.eq(0).all().item<bool>());
    }
  }
}

/// What ranges of all keys say of the keys [begin, end).
at::Tensor clipped(const at::Tensor& ranges, std::int64_t begin, std::int64_t end) {
  return (ranges.clamp(begin, end) - begin).to(at::kInt).contiguous();
}

HeadTensors with_keys(const HeadTensors& heads, std::int64_t begin, std::int64_t end) {
  return {heads.q, heads.k.narrow(1, begin, end - begin), heads.v.narrow(1, begin, end - begin)};
}

/// Cuts the keys at `cuts`, merges the parts in every order, and computes the gradients part by
/// part from the whole.
void expect_parts_sum_up(at::ScalarType type, const std::vector<std::int64_t>& cuts) {
  const HeadTensors heads = some_heads({2, 210, 90, 2, 2, 8}, type);
  const at::Tensor ranges = some_ranges(2, 210, 90, 3);
  const at::Tensor d_out = some_gradient(heads);
  const Reference expected = reference_of(heads, visible_in(ranges, 90), d_out);
  std::vector<std::size_t> order(cuts.size() - 1);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  do {
    AttentionPart sum{at::zeros_like(d_out), at::full({2, 4, 210}, -INFINITY, d_out.options())};
    for (const std::size_t i : order) {
      merge(sum, attention_part(with_keys(heads, cuts[i], cuts[i + 1]),
                                clipped(ranges, cuts[i], cuts[i + 1])));
    }
    EXPECT_LE(apart(sum.out, expected.result.out), tolerance_of(type));
    EXPECT_LE(apart(sum.lse, expected.result.lse), tolerance_of(type));
    HeadTensors total{at::zeros_like(heads.q), at::empty({0}), at::empty({0})};
    std::vector<at::Tensor> dk;
    std::vector<at::Tensor> dv;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const HeadTensors part = gradients_of(with_keys(heads, cuts[i], cuts[i + 1]),
                                            clipped(ranges, cuts[i], cuts[i + 1]), sum, d_out);
      total.q += part.q;
      dk.push_back(part.k);
      dv.push_back(part.v);
    }
    total.k = at::cat(dk, 1);
    total.v = at::cat(dv, 1);
    expect_close(total, expected.gradients, tolerance_of(type));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(AttentionPart, PartsMergeInAnyOrderAndShareTheirGradients) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    expect_parts_sum_up(type, {0, 41, 90});
    expect_parts_sum_up(type, {0, 1, 60, 90});
  }
}

// Beside the operators: by the formula, one row at a time, also where exponentials would overflow.
TEST(AttentionPart, MergingWeighsByTheLogarithms) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const auto part = [&](double out, double lse) {
      return AttentionPart{at::full({1, 1, 3}, out, type), at::full({1, 1, 1}, lse, type)};
    };
    const auto expect = [&](const AttentionPart& a, const AttentionPart& b, double out,
                            double lse) {
      merge(a, b);
      EXPECT_NEAR(a.out[0][0][2].item<double>(), out, 1e-6);
      if (std::isinf(lse)) {
        EXPECT_EQ(a.lse[0][0][0].item<double>(), lse);
      } else {
        EXPECT_NEAR(a.lse[0][0][0].item<double>(), lse, 1e-6 * std::max(1.0, std::abs(lse)));
      }
    };
    expect(part(1, 0), part(3, 0), 2, std::log(2));
    expect(part(1, std::log(3)), part(5, 0), 2, std::log(4));
    expect(part(1, 1000), part(3, 1000), 2, 1000 + std::log(2));
    expect(part(1, -1000), part(3, 1000), 3, 1000);
    expect(part(1, 2), part(0, -INFINITY), 1, 2);
    expect(part(0, -INFINITY), part(1, 2), 1, 2);
    expect(part(0, -INFINITY), part(0, -INFINITY), 0, -INFINITY);
  }
}

// Queries and keys of one packed tensor, keys by head as a cache has them, and gradients into
// views: the same bits, and nothing is written beside the places.
TEST(AttentionPart, ReadsAndWritesViews) {
  const at::Tensor qkv = leaf({2, 70, 2 * 5 * 8}, 1).detach().to(at::kFloat);
  const HeadTensors views = unpacked(qkv, 3, 8);
  const HeadTensors copies{views.q.contiguous(), views.k.contiguous(), views.v.contiguous()};
  const HeadTensors by_head{views.q.transpose(1, 2).contiguous().transpose(1, 2),
                            views.k.transpose(1, 2).contiguous().transpose(1, 2),
                            views.v.transpose(2, 3).contiguous().transpose(2, 3)};
  const at::Tensor ranges = some_ranges(2, 70, 70, 5);
  const at::Tensor d_out = some_gradient(copies);
  const AttentionPart expected = attention_part(copies, ranges);
  const HeadTensors gradients = gradients_of(copies, ranges, expected, d_out);
  for (const HeadTensors& heads : {views, by_head}) {
    const AttentionPart found = attention_part(heads, ranges);
    EXPECT_TRUE(at::equal(found.out, expected.out));
    EXPECT_TRUE(at::equal(found.lse, expected.lse));
    const at::Tensor room = at::full({2, 70, 2 * 7 * 8}, 99, at::kFloat);
    const at::Tensor parts = room.view({2, 70, 2, 7, 8});
    attention_part_backward(heads, ranges, found, d_out,
                            {parts.narrow(3, 1, 3), parts.select(3, 4), parts.select(3, 5)});
    EXPECT_TRUE(at::equal(parts.narrow(3, 1, 3), gradients.q));
    EXPECT_TRUE(at::equal(parts.select(3, 4), gradients.k));
    EXPECT_TRUE(at::equal(parts.select(3, 5), gradients.v));
    EXPECT_TRUE(parts.select(3, 0).eq(99).all().item<bool>());
    EXPECT_TRUE(parts.select(3, 6).eq(99).all().item<bool>());
  }
}

TEST(AttentionPart, OfSixteenBitsIsThatOfTheSameNumbersAsFloats) {
  const HeadTensors narrow = some_heads({2, 30, 40, 2, 2, 8}, at::kBFloat16);
  const HeadTensors wide{narrow.q.to(at::kFloat), narrow.k.to(at::kFloat), narrow.v.to(at::kFloat)};
  const at::Tensor ranges = some_ranges(1, 30, 40, 5);
  const AttentionPart found = attention_part(narrow, ranges);
  const AttentionPart expected = attention_part(wide, ranges);
  EXPECT_TRUE(at::equal(found.out, expected.out));
  EXPECT_TRUE(at::equal(found.lse, expected.lse));
  const at::Tensor d_out = some_gradient(narrow);
  const HeadTensors ours = gradients_of(narrow, ranges, found, d_out);
  const HeadTensors theirs = gradients_of(wide, ranges, expected, d_out.to(at::kFloat));
  EXPECT_TRUE(at::equal(ours.q, theirs.q.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(ours.k, theirs.k.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(ours.v, theirs.v.to(at::kBFloat16)));
}

TEST(AttentionPart, HasTheSameBitsWithAnyNumberOfThreads) {
  const HeadTensors heads = some_heads({3, 205, 130, 3, 2, 8}, at::kFloat);
  const at::Tensor ranges = some_ranges(3, 205, 130, 9);
  const at::Tensor d_out = some_gradient(heads);
  const int before = at::get_num_threads();
  std::vector<AttentionPart> results;
  std::vector<HeadTensors> gradients;
  for (const int threads : {1, 2, 3, 5}) {
    at::set_num_threads(threads);
    results.push_back(attention_part(heads, ranges));
    merge(results.back(), attention_part(heads, causal_ranges(205, 130)));
    gradients.push_back(gradients_of(heads, ranges, results.back(), d_out));
  }
  at::set_num_threads(before);
  for (std::size_t i = 1; i < results.size(); ++i) {
    EXPECT_TRUE(at::equal(results[i].out, results[0].out));
    EXPECT_TRUE(at::equal(results[i].lse, results[0].lse));
    EXPECT_TRUE(at::equal(gradients[i].q, gradients[0].q));
    EXPECT_TRUE(at::equal(gradients[i].k, gradients[0].k));
    EXPECT_TRUE(at::equal(gradients[i].v, gradients[0].v));
  }
}

TEST(AttentionPart, RecordsNoGraph) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const HeadTensors heads = some_heads({1, 5, 7, 1, 2, 8}, type);
    heads.q.set_requires_grad(true);
    const AttentionPart found = attention_part(heads, causal_ranges(5, 7));
    EXPECT_FALSE(found.out.requires_grad());
    EXPECT_FALSE(found.lse.requires_grad());
  }
}

TEST(AttentionPart, RefusesWhatDoesNotFit) {
  const HeadTensors heads = some_heads({2, 5, 7, 1, 2, 8}, at::kFloat);
  const at::Tensor ranges = causal_ranges(5, 7);
  const HeadTensors more_keys{heads.q, at::zeros({2, 8, 1, 8}), heads.v};
  const HeadTensors other_groups{heads.q, at::zeros({2, 7, 2, 8}), at::zeros({2, 7, 2, 8})};
  const HeadTensors by_four{heads.q.flatten(2, 3), heads.k, heads.v};
  for (const HeadTensors& wrong : {more_keys, other_groups, by_four})
    EXPECT_THROW(attention_part(wrong, ranges), Error);
  EXPECT_THROW(attention_part({heads.q, heads.k.to(at::kDouble), heads.v}, ranges), Error);
  EXPECT_THROW(attention_part(heads, causal_ranges(6, 7)), Error);
  EXPECT_THROW(attention_part(heads, ranges.to(at::kLong)), Error);
  EXPECT_THROW(attention_part(heads, ranges.expand({2, 5, 2})), Error) << "not in one piece";
  EXPECT_THROW(attention_part(heads, at::zeros({3, 5, 2}, at::kInt)), Error);
  for (const auto& [first, last] : {std::pair{-1, 2}, {0, 8}}) {
    at::Tensor beyond = ranges.clone();
    beyond[0][3][0] = first;
    beyond[0][3][1] = last;
    EXPECT_THROW(attention_part(heads, beyond), Error) << first << " " << last;
  }
  const AttentionPart whole = attention_part(heads, ranges);
  const at::Tensor d_out = some_gradient(heads);
  const HeadTensors places = places_like(heads);
  EXPECT_NO_THROW(attention_part_backward(heads, ranges, whole, d_out, places));
  EXPECT_THROW(attention_part_backward(heads, ranges, whole, d_out.narrow(1, 0, 4), places), Error);
  EXPECT_THROW(attention_part_backward(heads, ranges, whole, d_out,
                                       {places.q, places.k, places.v.narrow(1, 0, 6)}),
               Error);
  EXPECT_THROW(merge(whole, {whole.out.narrow(1, 0, 4), whole.lse}), Error);
  EXPECT_THROW(merge(whole, {whole.out.to(at::kDouble), whole.lse.to(at::kDouble)}), Error);
}

}  // namespace
}  // namespace shoal::ops::attention_part_test
