// Groups over MPI. Each rank runs all of this, started by mpirun.
#include "shoal/comm/mpi_engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "shoal/base/error.h"
#include "tests/comm/group_checks.h"

namespace shoal::comm::mpi_engine_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// MPI begins and ends with the program, so that one test after another may connect.
class Mpi : public ::testing::Environment {
 public:
  void SetUp() override {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  }
  void TearDown() override { MPI_Finalize(); }
};
[[maybe_unused]] const auto* const mpi = ::testing::AddGlobalTestEnvironment(new Mpi);

constexpr auto kPatience = std::chrono::seconds(60);

WorldOptions options() {
  WorldOptions options;
  MPI_Comm_rank(MPI_COMM_WORLD, &options.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &options.size);
  options.transport = Transport::kMpi;
  options.arena = false;
  options.timeout = kPatience;
  return options;
}

TEST(MpiEngine, EveryOperationTypeAndReduction) {
  EXPECT_THAT(check_types(connect(options())), IsEmpty());
}

TEST(MpiEngine, EveryWayOfCalling) {
  const Group group = connect(options());
  EXPECT_THAT(check_calls(group), IsEmpty());
  EXPECT_EQ(group.shared_buffer(64), nullptr);
  EXPECT_FALSE(group.visible_to_peers(at::empty({4})));
}

// What does for 100 elements a call does for 2^31 of them.
TEST(MpiEngine, WhatIsTooLargeToCountIsCut) {
  const Group group = connect_over_mpi(options(), 100);
  EXPECT_THAT(check_types(group), IsEmpty());
  EXPECT_THAT(check_calls(group), IsEmpty());
}

TEST(MpiEngine, RanksThatTheLauncherCountsDifferentlyAreRefused) {
  WorldOptions wrong = options();
  ++wrong.size;
  try {
    connect(wrong);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("MPI counts this process as rank"));
  }
}

TEST(MpiEngine, SaysWhichMpiItIsBuiltWith) { EXPECT_THAT(mpi_library(), HasSubstr("MPI")); }

TEST(MpiEngine, MessagesOfAnotherSizeAreAMismatch) {
  const Group group = connect(options());
  if (group.rank() == 0) {
    // The receiver may stop with its error before it takes the message.
    thrown([&] { group.send(at::full({3}, 1.0f), 1); });
    const auto told = thrown([&] { group.barrier(); });
    ASSERT_TRUE(told);
    EXPECT_EQ(told->kind(), ErrorKind::kMismatch) << told->what();
  } else {
    const auto error = thrown([&] {
      if (group.rank() == 1) group.recv(at::empty({5}), 0);
      group.barrier();
    });
    ASSERT_TRUE(error);
    EXPECT_STREQ(error->what(),
                 fmt::format("[recv] 20 bytes are expected, 12 have come (rank 1 of {}, peer 0)",
                             group.size())
                     .c_str());
  }
}

TEST(MpiEngine, TheFirstCauseGoesToAllRanks) {
  const Group group = connect(options());
  const int last = group.size() - 1;
  const auto before = Clock::now();
  if (group.rank() == last)
    group.abort(Error(ErrorKind::kData, "read", "the shard is truncated").at(last, group.size()));
  const auto error = thrown([&] { group.barrier(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kData);
  EXPECT_EQ(error->rank(), last);
  EXPECT_EQ(error->message(), "the shard is truncated");
  EXPECT_LT(Clock::now() - before, kPatience) << "sooner than by itself";
}

TEST(MpiEngine, AWaitEndsWithItsDeadline) {
  const Group group = connect(options());
  if (group.rank() != 0) {
    const auto told = thrown([&] { group.barrier(); });
    ASSERT_TRUE(told);
    EXPECT_EQ(told->kind(), ErrorKind::kTimeout);
    EXPECT_EQ(told->rank(), 0);
    return;
  }
  const at::Tensor never = at::empty({4});
  Work work = group.recv(never, 1, 3, {.async = true});
  EXPECT_FALSE(work.test());
  const auto error = thrown([&] { work.wait(Deadline::in(std::chrono::milliseconds(200))); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
  EXPECT_THAT(error->what(), HasSubstr("recv of 4 x f32 did not complete in time over MPI"));
}

}  // namespace
}  // namespace shoal::comm::mpi_engine_test
