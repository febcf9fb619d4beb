#include "shoal/comm/group.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "shoal/comm/world.h"
#include "tests/comm/group_checks.h"
#include "tests/support/fake_communicator.h"

namespace shoal::comm {
namespace {

WorldOptions threads(int ranks, bool arena = true) {
  return {.size = ranks,
          .arena = arena,
          .memory_limit_bytes = std::size_t{1} << 31,
          .timeout = std::chrono::seconds(60)};
}

TEST(Group, OfOneIsLocal) {
  const Group group;
  const at::Tensor x = at::arange(4, at::kFloat);
  const at::Tensor y = at::empty({4}, at::kFloat);
  group.all_reduce(x);
  group.all_gather(y, x);
  EXPECT_TRUE(y.equal(x));
  group.reduce_scatter(y, x);
  group.barrier();
  EXPECT_TRUE(y.equal(x));
  group.all_reduce(x, {.reduction = Reduction::kPremulSum, .scale = 0.5});
  EXPECT_TRUE(x.equal(at::arange(4, at::kFloat) / 2));
  group.reduce_scatter(y.t(), at::arange(4, at::kFloat),
                       {.reduction = Reduction::kPremulSum, .scale = 4});
  EXPECT_TRUE(y.equal(4 * at::arange(4, at::kFloat)));
  const auto refused = thrown([&] { group.all_reduce(x, {.reduction = Reduction::kBitOr}); });
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->what(), ::testing::HasSubstr("there is no all_reduce of f32 by bitwise_or"));
  EXPECT_EQ(group.split(0, 0).size(), 1);
  EXPECT_EQ(group.shared_buffer(100)->bytes(), 100u);
}

TEST(Group, CollectivesTakeTensorsOfAnyStride) {
  run_on_threads(threads(2), [](const Group& group) {
    const int rank = group.rank();
    at::Tensor x = at::arange(12, at::kDouble).view({3, 4}).t() + rank;  // not contiguous
    group.all_reduce(x);
    EXPECT_TRUE(x.equal(2 * at::arange(12, at::kDouble).view({3, 4}).t() + 1));

    at::Tensor gathered = at::empty({2, 5}, at::kLong);
    group.all_gather(gathered, at::full({5}, rank, at::kLong));
    EXPECT_TRUE(
        gathered.equal(at::cat({at::zeros({1, 5}, at::kLong), at::ones({1, 5}, at::kLong)})));

    at::Tensor part = at::empty({3}, at::kFloat);
    group.reduce_scatter(part, at::arange(6, at::kFloat));
    EXPECT_TRUE(part.equal(2 * at::arange(3 * rank, 3 * rank + 3, at::kFloat)));

    at::Tensor received = at::empty({3}, at::kFloat);
    // Rank 0 keeps 1 and sends 2 elements; rank 1 sends 2 and keeps 1 (and so receives 2 + 1).
    const at::Tensor sent = at::arange(3, at::kFloat) + 10 * rank;
    const std::vector<std::size_t> send =
        rank == 0 ? std::vector<std::size_t>{1, 2} : std::vector<std::size_t>{2, 1};
    group.all_to_all(received, sent, send, send);
    EXPECT_EQ(received[0].item<float>(), rank == 0 ? 0 : 1);
    EXPECT_EQ(received[2].item<float>(), rank == 0 ? 11 : 12);
  });
}

TEST(Group, EveryOperationTypeAndReductionOnThreads) {
  for (const int ranks : {2, 3}) {
    run_on_threads(threads(ranks), [](const Group& group) {
      EXPECT_THAT(check_types(group), ::testing::IsEmpty());
      EXPECT_THAT(check_calls(group), ::testing::IsEmpty());
    });
  }
}

TEST(Group, AsynchronousCallsKeepTheirTensorsAlive) {
  run_on_threads(threads(2), [](const Group& group) {
    std::vector<Work> works;
    at::Tensor kept = at::full({100000}, 1.0f);
    for (int i = 0; i < 20; ++i)
      works.push_back(group.all_reduce(at::full({50000}, static_cast<float>(i)), {.async = true}));
    works.push_back(group.all_reduce(kept, {.async = true}));
    works.back().order();
    EXPECT_TRUE(works.front().test());
    EXPECT_EQ(kept[99999].item<float>(), 2);
    EXPECT_GT(works.back().duration().count(), 0);
  });
}

TEST(Group, ManyTensorsAtOnce) {
  run_on_threads(threads(3), [](const Group& group) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 40; ++i)
      tensors.push_back(at::full({i * 37}, static_cast<float>(group.rank() + 1)));
    tensors.push_back(at::ones({4, 6}).t());
    group.all_reduce(tensors);
    for (int i = 1; i < 40; ++i) EXPECT_TRUE(tensors[i].eq(6).all().item<bool>());
    EXPECT_TRUE(tensors.back().eq(3).all().item<bool>());
  });
}

TEST(Group, ShapesThatDoNotFitAreTheCallersMistake) {
  const Group group(std::make_shared<collective::FakeCommunicator>(0, 4));
  EXPECT_THROW(group.all_gather(at::empty({7}), at::empty({2})), Error);
  EXPECT_THROW(group.reduce_scatter(at::empty({2}), at::empty({7})), Error);
  EXPECT_THROW(group.all_to_all(at::empty({6}), at::empty({6})), Error);
  EXPECT_THROW(group.all_to_all(at::empty({4}), at::empty({4}), {1, 1, 1, 1}, {1, 1, 1, 2}), Error);
  EXPECT_THROW(group.all_reduce(at::empty({4}, at::kQInt8)), std::exception);
}

TEST(SharedBuffer, ExistsOnceAndIsReadInPlace) {
  for (const bool arena : {true, false}) {
    run_on_threads(threads(3, arena), [](const Group& group) {
      const auto buffer = group.shared_buffer(3 * 64);
      ASSERT_NE(buffer, nullptr);
      const at::Tensor whole = buffer->tensor(0, {48}, at::kFloat);
      for (int round = 1; round <= 50; ++round) {
        buffer->tensor(static_cast<std::size_t>(group.rank()) * 64, {16}, at::kFloat)
            .fill_(static_cast<float>(100 * round + group.rank()));
        buffer->publish();
        for (int r = 0; r < 3; ++r)
          ASSERT_TRUE(whole.slice(0, 16 * r, 16 * r + 16).eq(100 * round + r).all().item<bool>());
        buffer->end_reading();
      }
      EXPECT_EQ(buffer->epoch(), 50u);
      EXPECT_TRUE(group.visible_to_peers(whole));
      EXPECT_THROW(buffer->tensor(64, {48}, at::kFloat), Error);
    });
  }
}

TEST(RunOnThreads, TheFirstCauseComesOut) {
  // Its rank may abort where it fails and take its time to leave: the others then come out first,
  // with its words as their own.
  for (const int delay_ms : {0, 200}) {
    const auto first = thrown([&] {
      run_on_threads(threads(3), [&](const Group& group) {
        if (group.rank() != 2) return group.barrier();
        const Error cause = Error(ErrorKind::kData, "read", "the shard is truncated").at(2, 3);
        if (delay_ms > 0) group.abort(cause);
        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        throw cause;
      });
    });
    ASSERT_TRUE(first) << delay_ms;
    EXPECT_EQ(first->kind(), ErrorKind::kData);
    EXPECT_STREQ(first->what(), "[read] the shard is truncated (rank 2 of 3)") << delay_ms;
  }
}

TEST(RunOnThreads, WhatIsNoErrorOfShoalKeepsItsTypeAndStopsTheOthers) {
  EXPECT_THROW(run_on_threads(threads(2),
                              [](const Group& group) {
                                if (group.rank() == 0) return group.barrier();
                                throw std::out_of_range("no such token");
                              }),
               std::out_of_range);
}

TEST(FakeCommunicator, PeersDoWhatThisRankDoes) {
  const auto fake = std::make_shared<collective::FakeCommunicator>(1, 4);
  const Group group(fake);
  at::Tensor x = at::arange(4, at::kFloat);
  group.all_reduce(x);
  EXPECT_TRUE(x.equal(4 * at::arange(4, at::kFloat)));
  at::Tensor part = at::empty({2}, at::kFloat);
  group.reduce_scatter(part, at::arange(8, at::kFloat));
  EXPECT_TRUE(part.equal(4 * at::arange(2, 4, at::kFloat)));
  ASSERT_EQ(fake->calls().size(), 2u);
  EXPECT_EQ(fake->calls()[1].count, 2u);
}

}  // namespace
}  // namespace shoal::comm
