// Runs of a pipeline, alone and with context or expert ranks in each stage, in which one rank is
// killed, is stopped, ends or fails in the middle of its schedule: what the program says, and how
// it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"
#include "tests/apps/step_fault.h"

namespace shoal::apps::testing::pipeline_faults_test {
namespace {

using ::testing::HasSubstr;

const std::string kDegree = "parallelism.pipeline_parallel_degree=";
const std::string kSchedule = "parallelism.pipeline_parallel_schedule=";
const std::string kTwoStages = "parallelism.pipeline_parallel_virtual_stages=2";

TEST(PipelineFaults, AKilledRankIsNamedByAll) {
  expect_named(killed(4, 1, "1B0", {kDegree + "4"}));
  // Two pipelines side by side, of which the ranks of a stage divide tensors.
  expect_named(killed(4, 3, "1W1", {kDegree + "2", kTensor, kSchedule + "zb-h1"}));
  expect_named(killed(4, 2, "2F1", {kDegree + "2", kTensor, kSchedule + "zb-v", kOverTcp}));
}

TEST(PipelineFaults, ARankThatFailsIsNamedByAllWithItsWords) {
  expect_named(failed(2, 0, "3SEND_B1", {kDegree + "2", kSchedule + "zb-v"}));
  expect_named(failed(4, 3, "3RECV_F1",
                      {kDegree + "2", kTensor, kSchedule + "interleaved", kTwoStages, kOverTcp}));
}

TEST(PipelineFaults, ARankThatEndsSilentlyIsNamedWithItsCode) {
  StepFault fault = killed(2, 1, "1I2", {kDegree + "2", kSchedule + "zb-h1"});
  fault.fault = "exit";
  fault.code = 1;
  fault.first = "shoal: rank 1 of 2 ended with code 1 and left no error report in step 3\n";
  expect_named(fault);
}

// Its neighbours wait for a message, for keys and values, or for rows that come to their experts;
// the others wait for these.
TEST(PipelineFaults, ARankThatStandsStillIsNamedByAll) {
  expect_named_together({stopped(4, 2, "2F0", {kDegree + "4"}),
                         stopped(4, 1, "0F1", {kDegree + "2", kRing}),
                         stopped(4, 2, "1F1", {kDegree + "2", kMixture, kExperts})});
}

// The other rank of its stage waits in the middle of attention: for keys and values, or for heads.
TEST(PipelineFaults, AContextRankIsNamedByAll) {
  expect_named(killed(4, 3, "1F1", {kDegree + "2", kRing}));
  expect_named(failed(4, 2, "1B1", {kDegree + "2", kRing, kHeads}));
}

// The other rank of its stage waits in the middle of a block for rows that come to its experts.
TEST(PipelineFaults, AnExpertRankIsNamedByAll) {
  expect_named(killed(4, 0, "0B1", {kDegree + "2", kMixture, kExperts}));
  expect_named(failed(4, 3, "1F1", {kDegree + "2", kMixture, kExperts, kOverTcp}));
}

TEST(PipelineFaults, AnActionThatItsRankDoesNotHaveIsRefused) {
  const Folder folder;
  write_faulty_job(folder);
  const Outcome outcome = run({shoal_program(), "train", "job.toml", "--run-dir", "run", "--nproc",
                               "2", "--set", kDegree + "2", "--set", "debug.fault=kill", "--set",
                               "debug.fault_step=3", "--set", "debug.fault_action=1F0"},
                              folder.path());
  EXPECT_EQ(outcome.code, 78) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("debug.fault_action = \"1F0\": rank 0 does not carry it out: "
                                     "its list in 1f1b begins with 0F0"));
}

}  // namespace
}  // namespace shoal::apps::testing::pipeline_faults_test
