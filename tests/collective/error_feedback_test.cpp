// The residuals between operations: which arrays an operation gets, what becomes of them, and which
// calls make no sense.
#include "shoal/collective/codec/error_feedback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/collective/codec/coded_exchange.h"
#include "tests/error_of.h"

namespace shoal::collective::error_feedback_test {
namespace {

using Floats = std::vector<float>;

TEST(ErrorFeedback, AnotherDivisionBeginsItsSumsAtZero) {
  ErrorFeedback residuals(100);
  const Coding coding{Codec::kI8, true, 32, Key()};
  const auto fill = [](const CodedFeedback& f, std::size_t own, float value) {
    EXPECT_EQ(f.contribution.next.size(), 100u);
    EXPECT_EQ(f.sum.next.size(), own);
    std::fill(f.contribution.next.begin(), f.contribution.next.end(), value);
    std::fill(f.sum.next.begin(), f.sum.next.end(), value);
  };
  // Returns the residual of the sum that an operation would add; empty: none.
  const auto present = [&](int ranks) {
    const CodedFeedback f = residuals.begin(coding, ranks, 0);
    Floats sum(f.sum.residual.begin(), f.sum.residual.end());
    residuals.drop();
    return sum;
  };
  fill(residuals.begin(coding, 2, 0), 64, 1);
  residuals.commit();
  EXPECT_EQ(residuals.sum(), Floats(64, 1));
  EXPECT_EQ(present(2), Floats(64, 1));
  // Three ranks: this one has 64 values again, but another division never keeps residuals. It is
  // not committed, so the old division finds its own again.
  const CodedFeedback other = residuals.begin(coding, 3, 0);
  fill(other, 64, 2);
  EXPECT_TRUE(other.sum.residual.empty());
  EXPECT_EQ(other.contribution.residual[0], 1) << "contributions are not divided";
  residuals.drop();
  EXPECT_EQ(present(2), Floats(64, 1));
  fill(residuals.begin(coding, 3, 0), 64, 2);
  residuals.commit();
  EXPECT_EQ(residuals.sum(), Floats(64, 2));
  EXPECT_EQ(present(2), Floats());
  EXPECT_EQ(present(3), Floats(64, 2));
}

TEST(ErrorFeedback, HasOneOperationAtATime) {
  const auto usage = [](auto&& call) { return error_of(call).kind() == ErrorKind::kUsage; };
  const Coding coding{Codec::kI8, true, 32, Key()};
  ErrorFeedback residuals(100);
  EXPECT_TRUE(usage([&] { residuals.commit(); }));
  EXPECT_TRUE(usage([&] { residuals.begin({Codec::kI8, true, 0, Key()}, 2, 0); }));
  EXPECT_TRUE(usage([&] { residuals.begin(coding, 2, 2); }));
  residuals.begin(coding, 2, 0);
  EXPECT_TRUE(usage([&] { residuals.begin(coding, 2, 0); }));
  residuals.commit();
  EXPECT_TRUE(usage([&] { residuals.commit(); }));
  residuals.begin(coding, 2, 0);
  residuals.drop();
  EXPECT_TRUE(usage([&] { residuals.commit(); }));
  residuals.drop();
  residuals.begin(coding, 2, 0);
}

// A dropped operation may still run. It reads and writes arrays that no later one uses, and that
// live as long as it does.
TEST(ErrorFeedback, ADroppedOperationKeepsItsArrays) {
  const Coding coding{Codec::kI8, true, 32, Key()};
  Floats values(100, 1.1f);
  std::weak_ptr<const void> memory;
  {
    auto residuals = std::make_unique<ErrorFeedback>(100);
    CodedFeedback feedback = residuals->begin(coding, 1, 0);
    memory = feedback.memory;
    const float* const first = feedback.sum.next.data();
    CodedExchange dropped({.kind = Kind::kAllReduce,
                           .type = ElementType::kF32,
                           .buffer = {values.data(), values.data(), 100},
                           .coding = coding,
                           .feedback = &feedback},
                          0, 1);
    feedback = {};
    residuals->drop();
    const CodedFeedback second = residuals->begin(coding, 1, 0);
    EXPECT_NE(second.sum.next.data(), first);
    std::fill(second.sum.next.begin(), second.sum.next.end(), 5.0f);
    EXPECT_FALSE(memory.expired());
    dropped.add_up();
    EXPECT_EQ(Floats(second.sum.next.begin(), second.sum.next.end()), Floats(100, 5));
    residuals.reset();
    dropped.add_up();
  }
  EXPECT_TRUE(memory.expired());
}

// Once an operation has ended, its arrays are used again: steps allocate no others.
TEST(ErrorFeedback, TakesTurnsWithTwoSetsOfArrays) {
  const Coding coding{Codec::kI8, true, 32, Key()};
  ErrorFeedback residuals(100);
  std::set<const float*> arrays;
  for (int step = 0; step < 6; ++step) {
    arrays.insert(residuals.begin(coding, 2, 0).contribution.next.data());
    residuals.commit();
  }
  EXPECT_EQ(arrays.size(), 2u);
}

}  // namespace
}  // namespace shoal::collective::error_feedback_test
