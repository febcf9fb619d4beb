// Tables of gathers and releases, worked out by hand.
#include "shoal/schedule/sharding.h"

#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::schedule::sharding_test {
namespace {

std::string actions_of(const ShardPlan& plan) { return to_string(shard_table(plan)); }

TEST(ShardTable, KeepsUnitsThatAreNotReshardedAfterForward) {
  EXPECT_EQ(
      actions_of(
          {.reads = {{0}, {1}}, .parent = {-1, -1}, .ahead = 0, .reshard_after_forward = false}),
      "gather 0, forward 0, gather 1, forward 1, backward 1, release 1, backward 0, release "
      "0");
}

// What a module reads is there as long as the modules inside it compute, in either pass.
TEST(ShardTable, AModuleHoldsItsUnitsWhileThoseInsideItCompute) {
  const ShardPlan plan{.reads = {{9}, {0}, {1}}, .parent = {-1, 0, 0}, .ahead = 0};
  EXPECT_EQ(actions_of(plan),
            "gather 9, forward 0, gather 0, forward 1, release 0, gather 1, forward 2, release 1, "
            "backward 0, gather 1, backward 2, release 1, gather 0, backward 1, release 0, release "
            "9");
}

// Backward enters a module that has something trained in it, though it begins before that, and none
// that ends before.
TEST(ShardTable, BackwardGoesThroughWhatIsAroundTheTrained) {
  EXPECT_EQ(
      actions_of({.reads = {{9}, {0}, {1}}, .parent = {-1, 0, 0}, .ahead = 0, .first_trained = 2}),
      "gather 9, forward 0, gather 0, forward 1, release 0, gather 1, forward 2, release 1, "
      "backward 0, gather 1, backward 2, release 1, release 9");
  EXPECT_EQ(actions_of({.reads = {{}, {1}}, .parent = {-1, 0}, .ahead = 0, .first_trained = 1}),
            "forward 0, gather 1, forward 1, backward 0, backward 1, release 1");
}

TEST(ShardTable, GathersAsFarAheadAsItIsAsked) {
  EXPECT_EQ(
      actions_of({.reads = {{0}, {1}, {2}, {3}}, .parent = {-1, -1, -1, -1}, .ahead = 2}),
      "gather 0, gather 1, gather 2, forward 0, release 0, gather 3, forward 1, release 1, forward "
      "2, release 2, forward 3, gather 2, gather 1, backward 3, release 3, gather 0, backward 2, "
      "release 2, backward 1, release 1, backward 0, release 0");
}

TEST(ShardTable, WithNothingToTrainThereIsNoBackward) {
  EXPECT_EQ(actions_of({.reads = {{0}, {1}}, .parent = {-1, -1}, .ahead = 0, .first_trained = 2}),
            "gather 0, forward 0, release 0, gather 1, forward 1, release 1");
  EXPECT_EQ(actions_of({}), "");
}

// An inference pass: nothing waits for a backward pass, and a tied unit stays to its last use.
TEST(ShardTable, AForwardPassAloneReleasesEverything) {
  ShardPlan plan{.reads = {{}, {0}, {1}, {0, 2}}, .parent = {-1, 0, 0, 0}};
  EXPECT_EQ(to_string(forward_shard_table(plan)),
            "gather 0, forward 0, gather 1, forward 1, gather 2, forward 2, release 1, forward 3, "
            "release 0, release 2");
  plan.reshard_after_forward = false;
  plan.ahead = 0;
  EXPECT_EQ(to_string(forward_shard_table(plan)),
            "forward 0, gather 0, forward 1, gather 1, forward 2, release 1, gather 2, forward 3, "
            "release 0, release 2");
  plan.parent = {-1, 0};
  EXPECT_THROW(forward_shard_table(plan), Error);
}

TEST(ShardTable, ListsThatDoNotFitTogetherAreRefused) {
  const auto refused = [](const ShardPlan& plan) {
    try {
      shard_table(plan);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kUsage;
    }
    return false;
  };
  EXPECT_FALSE(refused({.reads = {{0}, {1}}, .parent = {-1, 0}}));
  EXPECT_TRUE(refused({.reads = {{0}, {1}}, .parent = {-1}}));
  EXPECT_TRUE(refused({.reads = {{0}, {1}}, .parent = {-1, 1}})) << "inside itself";
  EXPECT_TRUE(refused({.reads = {{0}, {1}}, .parent = {-1, -2}}));
  EXPECT_TRUE(refused({.reads = {{0}}, .parent = {-1}, .ahead = -1}));
}

TEST(ShardPlan, HasTheDefaultsOfItsDocumentation) {
  const ShardPlan plan;
  EXPECT_EQ(plan.ahead, 1);
  EXPECT_TRUE(plan.reshard_after_forward);
  EXPECT_EQ(plan.first_trained, 0);
}

}  // namespace
}  // namespace shoal::schedule::sharding_test
