// Runs without a pipeline in which one rank is killed, is stopped, ends or fails between the passes
// of a step, while the others are in the middle of theirs: they wait for blocks of keys and values,
// for heads, for rows of experts, for parts of activations, for gradients or for parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"
#include "tests/apps/step_fault.h"

namespace shoal::apps::testing::step_faults_test {
namespace {

using ::testing::HasSubstr;

TEST(StepFaults, AKilledRankIsNamedByAll) {
  expect_named(killed(2, 1, "0B1", {kRing}));
  expect_named(killed(2, 0, "0F2", {kRing, kHeads, kOverTcp}));
  expect_named(killed(2, 1, "0F1", {kMixture, kExperts, kSharded, kOverTcp}));
  expect_named(killed(4, 2, "0B0", {kRing, kTensor}));
}

TEST(StepFaults, ARankThatFailsIsNamedByAllWithItsWords) {
  expect_named(failed(2, 0, "0F3", {kRing, kOverTcp}));
  expect_named(failed(2, 1, "0B1", {kMixture, kExperts}));
  expect_named(failed(2, 1, "0B2", {kTensor, kOverTcp}));
  expect_named(failed(4, 3, "0F0", {kMixture, kExperts, kTensor, kSharded}));
}

TEST(StepFaults, ARankThatStandsStillIsNamedByAll) {
  expect_named_together(
      {stopped(2, 1, "0F1", {kRing, kHeads}), stopped(2, 0, "0B1", {kMixture, kExperts, kOverTcp}),
       stopped(2, 1, "0F2", {kTensor}), stopped(2, 0, "0B0", {kSharded, kOverTcp})});
}

TEST(StepFaults, APassOfAnotherStageIsRefused) {
  const Folder folder;
  write_faulty_job(folder);
  const Outcome outcome =
      run({shoal_program(), "train", "job.toml", "--run-dir", "run", "--nproc", "2", "--set",
           "debug.fault=kill", "--set", "debug.fault_step=3", "--set", "debug.fault_action=1F0"},
          folder.path());
  EXPECT_EQ(outcome.code, 78) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("debug.fault_action = \"1F0\": rank 0 does not carry it out"));
}

}  // namespace
}  // namespace shoal::apps::testing::step_faults_test
