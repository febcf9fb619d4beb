// Self-attention with documents and positions, against one score for every pair.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ops/attention.h"
#include "tests/every_target.h"
#include "tests/ops/dense_attention.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::attention_documents_test {
namespace {

/// [B or 1, T, T] bool: the same document, and a position that is not behind that of the query.
at::Tensor rule_of(std::int64_t columns, const at::Tensor& documents, const at::Tensor& positions) {
  const at::Tensor order = positions.defined() ? positions : at::arange(columns, at::kLong);
  const at::Tensor visible = (order.unsqueeze(0) <= order.unsqueeze(1)).unsqueeze(0);
  if (!documents.defined()) return visible;
  return visible.logical_and(documents.unsqueeze(2) == documents.unsqueeze(1));
}

/// Attention of `type` and its gradient agree with the dense one in double.
void expect_dense(std::int64_t samples, std::int64_t columns, std::int64_t per,
                  const at::Tensor& documents, const at::Tensor& positions, at::ScalarType type) {
  const auto leaf_of = [&](at::ScalarType of) {
    return leaf({samples, columns, 2 * (per + 2) * 8}, 1).detach().to(of).set_requires_grad(true);
  };
  const at::Tensor weights = leaf({samples, columns, 2 * per * 8}, 2).detach();
  const at::Tensor reference = leaf_of(at::kDouble);
  const at::Tensor expected =
      dense_attention(unpacked(reference, per, 8), rule_of(columns, documents, positions)).out;
  expected.backward(weights);
  const at::Tensor qkv = leaf_of(type);
  const at::Tensor found = attention(qkv, {per, 8}, documents, positions);
  found.backward(weights.to(type));
  const double tolerance = type == at::kDouble ? 1e-10 : 1e-5;
  EXPECT_LE(apart(found, expected), tolerance);
  EXPECT_LE(apart(qkv.grad(), reference.grad()), tolerance) << "gradient";
}

/// Documents that begin at the given columns; their numbers descend.
at::Tensor documents_from(const std::vector<std::int64_t>& begins, std::int64_t columns) {
  at::Tensor documents = at::zeros({1, columns}, at::kInt);
  for (const std::int64_t begin : begins) documents.narrow(1, begin, columns - begin).sub_(1);
  return documents;
}

void expect_dense_for_documents(at::ScalarType type) {
  // A border at every column, next to those of blocks, none, and two samples with other borders.
  std::vector<at::Tensor> cases;
  for (std::int64_t border = 1; border < 9; ++border) cases.push_back(documents_from({border}, 9));
  cases.push_back(documents_from({1, 2, 3, 4, 5, 6, 7, 8}, 9));
  for (const std::int64_t border : {63, 64, 65, 191, 192, 193})
    cases.push_back(documents_from({border, border + 1, border + 90}, 300));
  cases.push_back(documents_from({}, 205));
  for (const at::Tensor& one : cases) {
    const std::int64_t columns = one.size(1);
    SCOPED_TRACE(testing::Message() << columns << " columns");
    if (columns < 100) expect_dense(2, columns, 1, one, {}, type);
    expect_dense(2, columns, 3, at::cat({one, documents_from({2, 5}, columns)}), {}, type);
  }
}

TEST(AttentionOfDocuments, IsDenseAttentionInDouble) { expect_dense_for_documents(at::kDouble); }

TEST(AttentionOfDocuments, IsDenseAttentionInFloatsOnEveryTarget) {
  on_every_target([](const std::string& target) {
    SCOPED_TRACE(target);
    expect_dense_for_documents(at::kFloat);
  });
}

/// The columns of rank `rank` of `ranks`, an early chunk and a late one.
at::Tensor zigzag(std::int64_t columns, std::int64_t rank, std::int64_t ranks) {
  const std::int64_t chunk = columns / 2;
  const std::int64_t late = 2 * ranks - 1 - rank;
  return at::cat({at::arange(rank * chunk, (rank + 1) * chunk, at::kLong),
                  at::arange(late * chunk, (late + 1) * chunk, at::kLong)});
}

TEST(AttentionOfPositions, IsDenseAttentionInAnyOrder) {
  const at::Tensor shuffled = at::argsort(leaf({206}, 5).detach());
  const at::Tensor packed = at::cat({at::arange(100, at::kLong), at::arange(106, at::kLong)});
  const at::Tensor border = documents_from({100}, 206);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const at::Tensor& positions :
         {zigzag(206, 0, 2), zigzag(206, 1, 2), zigzag(206, 1, 2).flip(0), shuffled,
          shuffled.remainder(50), at::arange(50, 256, at::kLong)}) {
      expect_dense(2, 206, 2, {}, positions, type);
    }
    // Documents in the order of positions: sorted they are runs, whatever the columns' order.
    const at::Tensor in_order =
        at::cat({documents_from({1, 7, 60, 61}, 206), documents_from({103, 150}, 206)});
    expect_dense(2, 206, 2, in_order.index_select(1, shuffled), shuffled, type);
    // Positions that start anew with each document.
    expect_dense(2, 206, 1, border, packed, type);
  }
}

// Each border, by perturbation: what stands before it, or behind the query, has no influence.
TEST(AttentionOfDocuments, SeesNothingBeforeTheBorderNorBehindTheQuery) {
  constexpr std::int64_t kColumns = 260;
  const at::Tensor documents = documents_from({70, 71, 200}, kColumns);
  const at::Tensor qkv = leaf({1, kColumns, 3 * 8}, 1).detach().to(at::kFloat);
  const at::Tensor before = attention(qkv, {1, 8}, documents);
  for (const std::int64_t changed : {0, 69, 70, 71, 199, 200, 259}) {
    const at::Tensor other = qkv.clone();
    other.select(1, changed).add_(3);
    const at::Tensor after = attention(other, {1, 8}, documents);
    for (std::int64_t i = 0; i < kColumns; ++i) {
      const bool sees =
          i >= changed && documents[0][i].item<int>() == documents[0][changed].item<int>();
      EXPECT_EQ(at::equal(after.select(1, i), before.select(1, i)), !sees) << changed << " " << i;
    }
  }
}

TEST(AttentionOfDocuments, OfOneDocumentHasTheBitsOfPlainAttention) {
  const at::Tensor qkv = leaf({2, 401, 2 * 4 * 8}, 1).detach().to(at::kFloat);
  const at::Tensor plain = attention(qkv, {2, 8});
  EXPECT_TRUE(at::equal(attention(qkv, {2, 8}, at::ones({2, 401}, at::kInt)), plain));
  EXPECT_TRUE(at::equal(attention(qkv, {2, 8}, {}, at::arange(7, 408, at::kLong)), plain));
}

TEST(AttentionOfDocuments, OfSixteenBitsIsTheRoundedOne) {
  const at::Tensor qkv = leaf({2, 70, 3 * 8}, 1).detach().to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor wide = qkv.detach().to(at::kFloat).set_requires_grad(true);
  const at::Tensor documents = documents_from({20}, 70);
  const at::Tensor found = attention(qkv, {1, 8}, documents);
  const at::Tensor expected = attention(wide, {1, 8}, documents);
  EXPECT_TRUE(at::equal(found, expected.to(at::kBFloat16)));
  found.sum().backward();
  expected.sum().backward();
  EXPECT_EQ(qkv.grad().scalar_type(), at::kBFloat16);
  EXPECT_LE(apart(qkv.grad(), wide.grad()), 0.02);  // bf16 keeps 8 bits
}

TEST(AttentionOfDocuments, RefusesShapesAndDocumentsThatComeBack) {
  const at::Tensor qkv = at::zeros({2, 3, 24}, at::kFloat);
  const auto refused = [&](const at::Tensor& documents, const at::Tensor& positions,
                           ErrorKind kind) {
    try {
      attention(qkv, {1, 8}, documents, positions);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
    }
  };
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{3}, {3, 3}, {2, 4}, {2, 1, 3}})
    refused(at::zeros(shape, at::kInt), {}, ErrorKind::kUsage);
  refused(at::zeros({2, 3}, at::kLong), {}, ErrorKind::kUsage);
  refused({}, at::zeros({4}, at::kLong), ErrorKind::kUsage);
  refused({}, at::zeros({3}, at::kInt), ErrorKind::kUsage);
  refused(at::tensor({0, 0, 0, 0, 1, 0}, at::kInt).view({2, 3}), {}, ErrorKind::kData);
  // In the order of positions the document comes back.
  refused(at::tensor({0, 0, 1}, at::kInt).unsqueeze(0), at::tensor({2, 0, 1}, at::kLong),
          ErrorKind::kData);
  EXPECT_NO_THROW(attention(qkv, {1, 8}, at::zeros({1, 3}, at::kInt)));
}

/// Follows what LibTorch's allocator gives and takes on this thread.
class Allocations final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    live_ += size;
    largest = std::max(largest, size);
    peak = std::max(peak, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t largest = 0, peak = 0;

 private:
  std::int64_t live_ = 0;
};

// 32,768 tokens: a mask would have 4.3 GB, and so would the scores.
TEST(AttentionOfDocuments, TakesMemoryThatGrowsWithTheTokens) {
  constexpr std::int64_t kColumns = 32768;
  constexpr std::int64_t kSize = 16;
  std::vector<std::int64_t> begins;
  for (std::int64_t at = 1000; at < kColumns; at += 1000) begins.push_back(at);
  const at::Tensor documents = documents_from(begins, kColumns);
  at::Tensor qkv = leaf({1, kColumns, 3 * kSize}, 1).detach().to(at::kFloat);
  qkv.set_requires_grad(true);
  const at::Tensor weights = at::ones({1, kColumns, kSize}, at::kFloat);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // all memory is asked for by this thread
  const auto seen = std::make_shared<Allocations>();
  at::Tensor out;
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, seen);
    out = attention(qkv, {1, kSize}, documents);
    out.backward(weights);
  }
  at::set_num_threads(threads);
  // Output, gradients and ranges have at most 3 x 16 floats a token; the scores of a block 192 x
  // 1000, twice.
  const std::int64_t tensor = kColumns * 3 * kSize * static_cast<std::int64_t>(sizeof(float));
  EXPECT_GT(seen->peak, tensor) << "nothing was counted";
  EXPECT_LE(seen->largest, tensor);
  EXPECT_LE(seen->peak, 4 * tensor);
  // The last document alone has the same values, up to the order of sums.
  const std::int64_t last = begins.back();
  const at::Tensor alone = attention(qkv.detach().narrow(1, last, kColumns - last), {1, kSize});
  EXPECT_LE(apart(out.narrow(1, last, kColumns - last), alone), 1e-5);
}

}  // namespace
}  // namespace shoal::ops::attention_documents_test
