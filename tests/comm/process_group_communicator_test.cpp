// Groups over backends of PyTorch that are handed in: Gloo, with threads as ranks.
#include "tests/support/process_group_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "shoal/base/error.h"
#include "tests/comm/gloo.h"
#include "tests/comm/group_checks.h"

namespace shoal::comm::process_group_communicator_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kPatience = std::chrono::seconds(60);

class OverGloo : public ::testing::TestWithParam<int> {};

TEST_P(OverGloo, EveryOperationTypeAndReduction) {
  run_over_gloo(GetParam(), kPatience,
                [](const Group& group) { EXPECT_THAT(check_types(group), IsEmpty()); });
}

TEST_P(OverGloo, EveryWayOfCalling) {
  run_over_gloo(GetParam(), kPatience,
                [](const Group& group) { EXPECT_THAT(check_calls(group), IsEmpty()); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OverGloo, ::testing::Values(2, 3, 4));

TEST(ProcessGroupCommunicator, SharesNoMemory) {
  run_over_gloo(2, kPatience, [](const Group& group) {
    EXPECT_EQ(group.shared_buffer(64), nullptr);
    EXPECT_FALSE(group.visible_to_peers(at::empty({4})));
    group.barrier();
  });
}

TEST(ProcessGroupCommunicator, TheFirstCauseGoesToAllRanks) {
  run_over_gloo(3, kPatience, [](const Group& group) {
    const auto before = Clock::now();
    if (group.rank() == 1)
      group.abort(Error(ErrorKind::kData, "read", "the shard is truncated").at(1, 3));
    const auto error = thrown([&] { group.all_reduce(at::full({1000}, 1.0f)); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kData);
    EXPECT_STREQ(error->what(), "[read] the shard is truncated (rank 1 of 3)");
    EXPECT_LT(Clock::now() - before, kPatience) << "sooner than by itself";
  });
}

// Rank 1 comes too late: rank 0's own timeout has ended its wait, and rank 1 learns why.
TEST(ProcessGroupCommunicator, ACallEndsWithItsTimeout) {
  std::atomic<bool> over = false;
  run_over_gloo(2, kPatience, [&](const Group& group) {
    while (group.rank() == 1 && !over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto error = thrown([&] {
      group.all_reduce(at::full({1000}, 1.0f), {.timeout = std::chrono::milliseconds(200)});
    });
    over = true;
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
    EXPECT_EQ(error->rank(), 0);
    EXPECT_THAT(error->what(), HasSubstr("[all_reduce] "));
  });
}

TEST(ProcessGroupCommunicator, AMessageThatNobodySendsIsWaitedForAsLongAsTheWaitSays) {
  std::atomic<bool> over = false;
  run_over_gloo(2, kPatience, [&](const Group& group) {
    while (group.rank() == 1 && !over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (group.rank() == 1) return;
    const at::Tensor never = at::empty({4});
    Work work = group.recv(never, 1, 3, {.async = true});
    EXPECT_FALSE(work.test());
    const auto error = thrown([&] { work.wait(Deadline::in(std::chrono::milliseconds(200))); });
    over = true;
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error->what(), HasSubstr("recv of 4 x f32 did not complete in time"));
  });
}

/// Has a name and nothing else.
class NoBackend final : public c10d::Backend {
 public:
  NoBackend() : Backend(0, 2) {}
  const std::string getBackendName() const override { return "none"; }
};

TEST(ProcessGroupCommunicator, WhatTheBackendLacksIsTheCallersMistake) {
  const Group group(process_group_communicator(c10::make_intrusive<NoBackend>(),
                                               c10::make_intrusive<c10d::HashStore>()));
  const auto error = thrown([&] { group.all_reduce(at::full({3}, 1.0f)); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kUsage);
  EXPECT_STREQ(error->what(),
               "[all_reduce] none: Backend none does not support allreduce (rank 0 of 2)");
  // Nothing has begun, so nothing has failed.
  EXPECT_EQ(thrown([&] { group.broadcast(at::full({3}, 1.0f), 0); })->kind(), ErrorKind::kUsage);
}

TEST(ProcessGroupCommunicator, TakesTheCpuBackendOfAProcessGroup) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto backend = gloo(store, rank, 2);
      const auto process_group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, 2);
      process_group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
      const Group group(process_group_communicator(process_group, kPatience));
      EXPECT_EQ(group.rank(), rank);
      EXPECT_THAT(check_calls(group), IsEmpty());
    });
  }
  for (auto& rank : ranks) rank.join();
}

}  // namespace
}  // namespace shoal::comm::process_group_communicator_test
