// Where the elements of an operation lie for its steps, and what is copied where buffers overlap.
#include "shoal/collective/work_vector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace shoal::collective::work_vector_test {
namespace {

constexpr std::size_t kCount = 4;
constexpr int kVectorRanks = 3;

class WorkVectorOfRank1 : public testing::Test {
 protected:
  WorkVectorOfRank1() : memory_(8 * kCount * kVectorRanks) {
    std::iota(memory_.begin(), memory_.end(), 0);
  }
  int* at(std::size_t i) { return memory_.data() + i; }
  WorkVector make(Kind kind, int* in, int* out, int root = 0, bool partial_sums = false) {
    operation_ = {
        .kind = kind, .type = ElementType::kI32, .buffer = {in, out, kCount}, .peer = root};
    return {operation_, 1, kVectorRanks, partial_sums};
  }
  static int* place(const WorkVector& work, std::size_t begin, std::size_t end) {
    return reinterpret_cast<int*>(work.at({begin, end}));
  }

  std::vector<int> memory_;
  Operation operation_;
};

TEST_F(WorkVectorOfRank1, LeavesPartsOfAReduceScatterWhereTheyLie) {
  int* const in = at(0);
  int* const out = at(50);
  const WorkVector work = make(Kind::kReduceScatter, in, out);
  EXPECT_EQ(place(work, 0, kCount), in);
  EXPECT_EQ(place(work, kCount, 2 * kCount), out) << "its own part is folded in the output";
  EXPECT_EQ(place(work, 2 * kCount, 3 * kCount), in + 2 * kCount);
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(out[i], static_cast<int>(kCount + i));
}

// An output beside the input, or at this rank's part of it, does no harm; any other overlap does.
TEST_F(WorkVectorOfRank1, CopiesTheInputOfAReduceScatterThatItWouldOverwrite) {
  int* const in = at(20);
  const auto copies = [&](int* out) {
    const WorkVector work = make(Kind::kReduceScatter, in, out);
    const int* first = place(work, 0, 1);
    return first != in;
  };
  EXPECT_FALSE(copies(in + kCount));
  EXPECT_FALSE(copies(in - kCount)) << "right before";
  EXPECT_FALSE(copies(in + kCount * kVectorRanks)) << "right behind";
  EXPECT_TRUE(copies(in));
  EXPECT_TRUE(copies(in + 1));
  EXPECT_TRUE(copies(in - 1));
  EXPECT_TRUE(copies(in + kCount * kVectorRanks - 1));
}

TEST_F(WorkVectorOfRank1, AddsPartialSumsInMemoryOfItsOwn) {
  int* const in = at(0);
  int* const out = at(50);
  const std::vector<int> before = memory_;
  WorkVector work = make(Kind::kReduceScatter, in, out, 0, true);
  int* const own = place(work, 0, kCount * kVectorRanks);
  ASSERT_NE(own, nullptr);
  EXPECT_NE(own, in);
  EXPECT_TRUE(std::equal(own, own + kCount * kVectorRanks, in));
  for (std::size_t i = 0; i < kCount * kVectorRanks; ++i) own[i] = 100 + static_cast<int>(i);
  EXPECT_EQ(memory_, before);
  work.finish(operation_, 1);
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(out[i], 100 + static_cast<int>(kCount + i));

  work = make(Kind::kReduce, in, out, 0, true);
  EXPECT_NE(place(work, 0, kCount), in) << "not the root: its input stays as it is";
  work = make(Kind::kReduce, in, out, 0, false);
  EXPECT_EQ(place(work, 0, kCount), in);
  work = make(Kind::kReduce, in, out, 1, true);
  EXPECT_EQ(place(work, 0, kCount), out) << "the root adds in its output";
}

// What stays on a rank is no message: it is copied before the first step, and nothing else is.
TEST_F(WorkVectorOfRank1, CopiesWhatARankKeepsForItself) {
  int* const in = at(0);
  int* const out = at(50);
  std::vector<int> want = memory_;
  const auto kept = [&](std::size_t to, std::size_t from, std::size_t count) {
    std::copy_n(want.begin() + static_cast<std::ptrdiff_t>(from), count,
                want.begin() + static_cast<std::ptrdiff_t>(50 + to));
    EXPECT_EQ(memory_, want);
    std::iota(memory_.begin(), memory_.end(), 0);
    want = memory_;
  };
  WorkVector work = make(Kind::kAllGather, in, out);
  EXPECT_EQ(place(work, 0, kCount * kVectorRanks), out);
  kept(kCount, 0, kCount);
  work = make(Kind::kScatter, in, out, 1);
  EXPECT_EQ(place(work, 0, kCount * kVectorRanks), in) << "the root sends from its input";
  kept(0, kCount, kCount);
  work = make(Kind::kAllToAll, in, out);
  EXPECT_EQ(place(work, 0, kCount * kVectorRanks), in);
  EXPECT_EQ(place(work, kCount * kVectorRanks, 2 * kCount * kVectorRanks), out);
  kept(kCount, kCount, kCount);
  // Uneven parts lie one behind the other too.
  const std::vector<std::size_t> send{3, 2, 5};
  const std::vector<std::size_t> receive{7, 2, 1};
  operation_.send_counts = send;
  operation_.receive_counts = receive;
  work = WorkVector(operation_, 1, kVectorRanks, false);
  EXPECT_EQ(place(work, 0, 10), in);
  EXPECT_EQ(place(work, 10, 20), out);
  kept(7, 3, 2);
}

TEST_F(WorkVectorOfRank1, HasNoMemoryForWhatTheRankNeverTouches) {
  EXPECT_EQ(place(make(Kind::kGather, at(0), at(50)), 0, kCount), nullptr);
  EXPECT_EQ(place(make(Kind::kGather, at(0), at(50)), kCount, 2 * kCount), at(0));
  EXPECT_EQ(place(make(Kind::kGather, at(0), at(50), 1), 0, 3 * kCount), at(50));
  EXPECT_EQ(place(make(Kind::kScatter, at(0), at(50)), kCount, 2 * kCount), at(50));
  EXPECT_EQ(place(make(Kind::kScatter, at(0), at(50)), kCount - 1, 2 * kCount), nullptr);
  EXPECT_EQ(place(make(Kind::kBarrier, nullptr, nullptr), 0, 2), nullptr);
  EXPECT_NE(place(make(Kind::kBarrier, nullptr, nullptr), 0, 1), nullptr);
}

}  // namespace
}  // namespace shoal::collective::work_vector_test
