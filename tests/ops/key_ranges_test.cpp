// Which keys a query sees, against a loop over all pairs, and how rows are cut into blocks.
#include "shoal/ops/key_ranges.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ops/attention_kernels.h"
#include "tests/ops/dense_attention.h"

namespace shoal::ops::key_ranges_test {
namespace {

at::Tensor longs(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }
at::Tensor row_of_documents(const std::vector<std::int32_t>& values) {
  return at::tensor(values, at::kInt).unsqueeze(0);
}

/// [T, S] bool by the rule itself: the same document, and not behind the query.
at::Tensor rule_of_pairs(const TokenPlaces& queries, const TokenPlaces& keys) {
  const auto order = [](const TokenPlaces& x) {
    return x.positions.defined() ? x.positions : at::arange(x.columns, at::kLong);
  };
  at::Tensor visible = (order(keys).unsqueeze(0) <= order(queries).unsqueeze(1)).unsqueeze(0);
  if (keys.documents.defined()) {
    visible = visible.logical_and(queries.documents.unsqueeze(2) == keys.documents.unsqueeze(1));
  }
  return visible;
}

void expect_rule(const TokenPlaces& queries, const TokenPlaces& keys) {
  const at::Tensor ranges = key_ranges(queries, keys);
  EXPECT_EQ(ranges.scalar_type(), at::kInt);
  EXPECT_TRUE(at::equal(visible_in(ranges, keys.columns), rule_of_pairs(queries, keys)));
}

/// Documents of 1 to `longest` tokens, by numbers that do not ascend.
at::Tensor some_documents(std::int64_t samples, std::int64_t columns, int longest, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  at::Tensor documents = at::empty({samples, columns}, at::kInt);
  auto* out = documents.mutable_data_ptr<std::int32_t>();
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    std::int32_t number = 1000;
    for (std::int64_t i = 0, left = 0; i < columns; ++i, --left) {
      if (left == 0) {
        left = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(longest));
        number -= 7;
      }
      out[sample * columns + i] = number;
    }
  }
  return documents;
}

TEST(KeyRanges, AreOfTheDocumentUpToThePosition) {
  expect_rule({9, {}, {}}, {9, {}, {}});
  expect_rule({9, longs({4, 0, 8, 2, 1, 7, 3, 6, 5}), {}}, {9, {}, {}});
  expect_rule({3, longs({5, 0, 9}), {}}, {4, longs({0, 0, 5, 7}), {}});
  for (const int longest : {1, 2, 9, 100}) {
    const at::Tensor documents = some_documents(3, 60, longest, longest);
    expect_rule({60, {}, documents}, {60, {}, documents});
    // Chunks of one sequence: each looks at itself, at an earlier one and at a later one.
    const auto chunk = [&](std::int64_t begin, std::int64_t count) {
      return TokenPlaces{count, at::arange(begin, begin + count, at::kLong),
                         documents.narrow(1, begin, count)};
    };
    for (const std::int64_t queries : {0, 13, 41}) {
      for (const std::int64_t keys : {0, 13, 41}) expect_rule(chunk(queries, 17), chunk(keys, 19));
    }
    // A single row of documents serves all samples.
    const at::Tensor one = documents.narrow(0, 1, 1);
    expect_rule({60, {}, one}, {60, {}, one});
    expect_rule({60, {}, documents}, {60, {}, one});
  }
  // Positions that start anew with each document, as for packed samples.
  const at::Tensor packed = row_of_documents({5, 5, 5, 2, 2, 9});
  const TokenPlaces anew{6, longs({0, 1, 2, 0, 1, 0}), packed};
  EXPECT_TRUE(in_order(anew));
  expect_rule(anew, anew);
}

TEST(KeyRanges, OfCausalQueriesMayBeginAnywhere) {
  for (const std::int64_t offset : {-9, -3, 0, 2, 8}) {
    EXPECT_TRUE(
        at::equal(visible_in(causal_ranges(5, 7, offset), 7),
                  rule_of_pairs({5, at::arange(offset, 5 + offset, at::kLong), {}}, {7, {}, {}})))
        << offset;
  }
}

TEST(KeyRanges, KnowsWhichColumnsAreInOrder) {
  EXPECT_TRUE(in_order({3, {}, {}}));
  EXPECT_TRUE(in_order({3, longs({2, 2, 9}), {}}));
  EXPECT_FALSE(in_order({3, longs({2, 9, 8}), {}}));
  EXPECT_TRUE(in_order({3, longs({2, 9, 8}), row_of_documents({1, 1, 0})}));
  EXPECT_FALSE(in_order({3, longs({2, 9, 8}), row_of_documents({1, 0, 0})}));
  const at::Tensor two = at::cat({row_of_documents({1, 1, 0}), row_of_documents({1, 1, 1})});
  EXPECT_FALSE(in_order({3, longs({2, 9, 8}), two})) << "in the second sample";
}

void expect_refused(const std::function<void()>& call, ErrorKind kind, const char* words) {
  try {
    call();
    ADD_FAILURE() << "it was taken: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(words));
  }
}

TEST(KeyRanges, RefusesWhatIsNoRange) {
  const auto of_keys = [](const TokenPlaces& keys) { return [keys] { key_ranges(keys, keys); }; };
  const at::Tensor good = row_of_documents({4, 4, 4, 4, 5});
  const at::Tensor back = row_of_documents({4, 4, 5, 4, 4});
  expect_refused(of_keys({5, {}, at::cat({good, back})}), ErrorKind::kData,
                 "sample 1: document 4 ends at column 2 and comes back at column 3");
  expect_refused(of_keys({3, longs({0, 7, 6}), {}}), ErrorKind::kData,
                 "key 2 has position 6, behind position 7");
  expect_refused(of_keys({3, longs({0, 1}), {}}), ErrorKind::kUsage, "positions must be [3]");
  expect_refused(of_keys({std::int64_t{1} << 31, {}, {}}), ErrorKind::kUsage,
                 "2147483648 tokens in a row");
  expect_refused(of_keys({2, at::zeros({2}, at::kInt), {}}), ErrorKind::kUsage, "int64");
  expect_refused(of_keys({2, {}, at::zeros({1, 2}, at::kLong)}), ErrorKind::kUsage, "int32");
  expect_refused(of_keys({2, {}, at::zeros({2}, at::kInt)}), ErrorKind::kUsage, "[B, 2]");
  expect_refused(
      [&] {
        key_ranges({5, {}, good}, {5, {}, {}});
      },
      ErrorKind::kUsage, "for the queries only");
  expect_refused(
      [&] {
        key_ranges({5, {}, at::cat({good, good})}, {5, {}, at::cat({good, good, good})});
      },
      ErrorKind::kUsage, "2 samples, those of keys 3");
}

/// Blocks follow each other without a gap, and each has the keys of all of its rows.
std::int64_t area_of(const at::Tensor& ranges) {
  const auto* bounds = ranges.const_data_ptr<std::int32_t>();
  std::int64_t at = 0;
  std::int64_t area = 0;
  for (const kernels::AttentionBlock& block : kernels::attention_blocks(ranges.size(1), bounds)) {
    EXPECT_EQ(block.begin, at);
    EXPECT_GT(block.rows, 0);
    for (; at < block.begin + block.rows; ++at) {
      if (bounds[2 * at] >= bounds[2 * at + 1]) continue;
      EXPECT_GE(bounds[2 * at], block.first);
      EXPECT_LE(bounds[2 * at + 1], block.first + block.width);
    }
    area += block.rows * block.width;
  }
  EXPECT_EQ(at, ranges.size(1));
  return area;
}

// The products of a block have rows x width scores. Beyond the pairs that see each other there are
// the half of each square on the diagonal, and what small documents of one block share.
TEST(AttentionBlocks, ComputeLittleBesideThePairsThatSeeEachOther) {
  constexpr std::int64_t kColumns = 3000;
  for (const int longest : {1, 7, 64, 300, 1000}) {
    const at::Tensor documents = some_documents(1, kColumns, longest, 3);
    const at::Tensor ranges = key_ranges({kColumns, {}, documents}, {kColumns, {}, documents});
    const std::int64_t pairs =
        (ranges.select(2, 1) - ranges.select(2, 0)).sum().item<std::int64_t>();
    EXPECT_LE(area_of(ranges), pairs + 192 * kColumns) << longest;
    EXPECT_LE(area_of(ranges), std::max<std::int64_t>(3 * pairs, 130 * kColumns)) << longest;
  }
  const at::Tensor causal = causal_ranges(kColumns, kColumns);
  EXPECT_LE(area_of(causal), kColumns * (kColumns + 192) / 2);
  // Half of the queries come before all keys: they cost nothing.
  EXPECT_LE(area_of(causal_ranges(kColumns, kColumns, -1536)), 1464 * (1464 + 192) / 2);
}

}  // namespace
}  // namespace shoal::ops::key_ranges_test
