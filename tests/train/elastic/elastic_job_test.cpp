// Members of an elastic job as threads: what they train, what they write, and what a replay finds.
#include "tests/train/elastic/elastic_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/hex.h"
#include "shoal/train/elastic/member_batch.h"
#include "shoal/wire/join_token.h"

namespace shoal::train::elastic_job_test {
namespace {

using testing::HasSubstr;

TEST(MemberBatch, MembersShareTheMicroBatchesWhateverTheirNumber) {
  const BatchPlan plan{.global = 24, .micro_batch = 3, .accumulation = 8};
  for (std::int64_t members = 1; members <= 10; ++members) {
    std::int64_t next = 0;
    for (std::int64_t member = 0; member < members; ++member) {
      const SampleRange samples = samples_of_member(plan, member, members);
      EXPECT_EQ(samples.first, next);
      EXPECT_EQ(samples.count % 3, 0);
      EXPECT_LE(samples.count, (8 + members - 1) / members * 3);
      next += samples.count;
    }
    EXPECT_EQ(next, 24);
  }
}

TEST(MemberBatch, MembersOfUnequalSpeedHaveUnequalShares) {
  const BatchPlan plan{.global = 24, .micro_batch = 2, .accumulation = 12};
  using Ranges = std::vector<SampleRange>;
  EXPECT_EQ(samples_by_speed(plan, {1, 1, 1}), (Ranges{{0, 8}, {8, 8}, {16, 8}}));
  EXPECT_EQ(samples_by_speed(plan, {3, 1}), (Ranges{{0, 18}, {18, 6}})) << "one each, 10 by 3:1";
  EXPECT_EQ(samples_by_speed(plan, {1000, 1, 0.001}), (Ranges{{0, 20}, {20, 2}, {22, 2}}));
  // More members than micro-batches.
  const auto many = samples_by_speed({.global = 2, .micro_batch = 1, .accumulation = 2}, {1, 2, 4});
  EXPECT_EQ(many, (Ranges{{0, 0}, {0, 1}, {1, 1}}));
  std::mt19937 random(7);
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<double> speeds(1 + random() % 15);
    for (double& speed : speeds) speed = 1e-3 + random() * 1e-6;
    std::int64_t next = 0;
    for (const SampleRange& samples : samples_by_speed(plan, speeds)) {
      EXPECT_EQ(samples.first, next);
      EXPECT_EQ(samples.count % 2, 0);
      next += samples.count;
    }
    EXPECT_EQ(next, 24) << trial;
  }
}

TEST_F(ElasticJob, AMemberAloneTrainsAsARunThatIsNotElastic) {
  ASSERT_EQ(train_in("plain", {}), 0);
  ASSERT_EQ(start("elastic", {}).get(), 0);
  const auto plain = metrics("plain");
  const auto elastic = metrics("elastic");
  ASSERT_EQ(plain.size(), 12u);
  ASSERT_EQ(elastic.size(), 12u);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(elastic[i].loss, plain[i].loss) << "step " << i + 1;
    EXPECT_EQ(elastic[i].grad_norm, plain[i].grad_norm) << "step " << i + 1;
    EXPECT_EQ(elastic[i].members, 1);
  }
  EXPECT_EQ(elastic.back().evaluation->loss, plain.back().evaluation->loss);
}

TEST_F(ElasticJob, ThreeMembersTrainTheSamplesOfOneRun) {
  ASSERT_EQ(train_in("plain", {}), 0);
  auto first = start("a", {"elastic.members=3"});
  auto second = start("b", joining("a"));
  auto third = start("c", joining("a"));
  EXPECT_EQ(first.get() + second.get() + third.get(), 0);

  const auto steps = lineage("a");
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_EQ(lineage("b"), steps);
  EXPECT_EQ(lineage("c"), steps);
  for (const LineageStep& step : steps) {
    ASSERT_EQ(step.members.size(), 3u);
    std::int64_t next = 8 * (step.step - 1);
    for (const LineageMember& member : step.members) {
      EXPECT_EQ(member.first_sample, next);
      next += member.samples;
    }
    EXPECT_EQ(next, 8 * step.step);
  }
  const auto plain = metrics("plain");
  for (const char* name : {"a", "b", "c"}) {
    const auto own = metrics(name);
    ASSERT_EQ(own.size(), plain.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      // Gradients are added up in another order, which costs float32 its last bits.
      EXPECT_NEAR(own[i].loss, plain[i].loss, 1e-4 * plain[i].loss) << name << " step " << i + 1;
      EXPECT_NEAR(own[i].grad_norm, plain[i].grad_norm, 1e-3 * plain[i].grad_norm);
      EXPECT_EQ(own[i].members, 3);
    }
    const Replayed replayed = replay_of(name);
    EXPECT_FALSE(replayed.differs);
    EXPECT_EQ(replayed.first, 1);
    EXPECT_EQ(replayed.last, 12);
  }
}

// Dropout, bf16 weights with fp32 masters, clipping: all that a step changes is in the digest.
TEST_F(ElasticJob, AReplayHasTheBitsOfBf16WeightsToo) {
  const Sets sets{"precision.type=bf16", "optimizer.clip_norm=0.5"};
  auto first = start("a", sets + Sets{"elastic.members=2"});
  auto second = start("b", sets + joining("a"));
  EXPECT_EQ(first.get() + second.get(), 0);
  EXPECT_EQ(lineage("a"), lineage("b"));
  EXPECT_FALSE(replay_of("a").differs);
}

TEST_F(ElasticJob, AReplayNamesTheFirstStepThatDiffers) {
  ASSERT_EQ(start("a", {}).get(), 0);
  auto steps = lineage("a");
  const std::string right = steps[6].state;
  steps[6].state[0] = right[0] == '0' ? '1' : '0';
  steps[7].before = steps[6].state;
  const auto write = [&] {
    std::ofstream out(RunDirectory(path("a")).lineage());
    for (const LineageStep& step : steps) out << to_json(step) << "\n";
  };
  write();
  const Replayed replayed = replay_of("a");
  ASSERT_TRUE(replayed.differs);
  EXPECT_EQ(replayed.differs->step, 7);
  EXPECT_EQ(replayed.state, right);

  // A sample that is left out.
  steps[6].state = steps[7].before = right;
  steps[3].members[0].first_sample += 1;
  write();
  try {
    replay_of("a");
    ADD_FAILURE() << "a lineage with other samples is accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 4: member 1 of 1 has samples 25 to 33"));
  }
}

TEST_F(ElasticJob, AMemberThatFailsInTheMiddleOfAStepCostsTheOthersAnAttempt) {
  auto first = start("a", {"elastic.members=3"});
  auto second = start("b", joining("a"));
  auto third = start("c", joining("a") + Sets{"debug.fault=error", "debug.fault_step=5",
                                              "debug.fault_action=0B1"});
  EXPECT_THROW(third.get(), Error);
  EXPECT_EQ(first.get() + second.get(), 0);
  const auto steps = lineage("a");
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_EQ(lineage("b"), steps);
  EXPECT_EQ(steps[3].members.size(), 3u);
  EXPECT_EQ(steps[4].members.size(), 2u);
  EXPECT_FALSE(replay_of("a").differs);
}

// The members compare their states when both have updated: both must take that back.
TEST_F(ElasticJob, AnUpdateThatIsNotCommittedIsTakenBack) {
  // A retry without that would differ again and again.
  const Sets sets{"precision.type=bf16", "elastic.step_timeout_s=60"};
  auto first = start("a", sets + Sets{"elastic.members=2"});
  auto second = start("b", sets + joining("a") + Sets{"debug.fault=flip", "debug.fault_step=5"});
  EXPECT_EQ(first.get() + second.get(), 0);
  const auto steps = lineage("a");
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_EQ(lineage("b"), steps);
  EXPECT_GT(steps[4].epoch, steps[3].epoch) << "no attempt was given up";
  EXPECT_EQ(steps[5].epoch, steps[4].epoch);
  EXPECT_EQ(steps[4].members.size(), 2u);
  EXPECT_FALSE(replay_of("a").differs);
}

TEST_F(ElasticJob, AnUpdateBeforeAFailureIsNotInTheCheckpoint) {
  ASSERT_EQ(start("undisturbed", {}).get(), 0);
  EXPECT_THROW(start("a", {"debug.fault=error", "debug.fault_step=5", "debug.fault_action=update",
                           "checkpoint.interval=0"})
                   .get(),
               Error);
  ASSERT_EQ(start("a", {}).get(), 0);
  const auto undisturbed = lineage("undisturbed");
  const auto steps = lineage("a");
  ASSERT_EQ(steps.size(), 12u);
  for (std::size_t i = 0; i < steps.size(); ++i)
    EXPECT_EQ(steps[i].state, undisturbed[i].state) << "step " << i + 1;
}

// Nobody listens at that port.
TEST_F(ElasticJob, AMemberWaitsAsLongAsItsJobSays) {
  try {
    start("a", {"elastic.join=[\"127.0.0.1:1\"]", "elastic.step_timeout_s=1"}).get();
    ADD_FAILURE() << "it has joined nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("no member has let this one join"));
  }
}

TEST_F(ElasticJob, AMemberThatIsStoppedSavesAndTheOthersGoOn) {
  std::atomic<int> stop = 0;
  std::atomic<int> stop_other = 0;
  const Sets forever{"training.steps=100000", "elastic.members=2", "validation.interval=0"};
  auto first = start("a", forever, &stop);
  auto second = start("b", joining("a") + forever, &stop_other);
  wait_for("b", [](const LineageStep& step) { return step.step > 3; });
  stop = SIGTERM;
  EXPECT_EQ(first.get(), 128 + SIGTERM);
  const std::int64_t left_behind = lineage("a").back().step;
  wait_for("b", [&](const LineageStep& step) { return step.step > left_behind + 3; });
  // It comes back from where the others are, not from its checkpoint.
  stop = 0;
  auto again =
      start("a", joining("b") + Sets{"training.steps=100000", "validation.interval=0"}, &stop);
  wait_for("b", [&](const LineageStep& step) {
    return step.step > left_behind + 3 && step.members.size() == 2;
  });
  wait_for("a", [&](const LineageStep& step) { return step.members.size() == 2; });
  stop = SIGTERM;
  EXPECT_EQ(again.get(), 128 + SIGTERM);
  stop_other = SIGTERM;
  EXPECT_EQ(second.get(), 128 + SIGTERM);
  // Its steps from the second start on: what it missed is not in its lineage.
  EXPECT_GT(lineage("a").front().step, left_behind);
  EXPECT_FALSE(replay_of("b").differs);
  EXPECT_EQ(replay_of("b").first, 1);
}

// The first one waits for a second member, and another process for a group to join.
TEST_F(ElasticJob, WhoWaitsForOthersStopsWhenItIsAsked) {
  std::atomic<int> stop = 0;
  auto first = start("a", {"elastic.members=2"}, &stop);
  const Sets to_a = joining("a");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  stop = SIGTERM;
  EXPECT_EQ(first.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(first.get(), 128 + SIGTERM);
  EXPECT_TRUE(lineage("a").empty());
  stop = 0;
  auto second = start("b", to_a, &stop);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_EQ(second.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  stop = SIGINT;
  EXPECT_EQ(second.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(second.get(), 128 + SIGINT);
  EXPECT_THAT(log_of("b"), HasSubstr("stopped by signal 2 before"));
}

TEST_F(ElasticJob, AGroupThatEndedGoesOnFromTheCheckpointOfAMember) {
  const Sets even{"lr_scheduler.name=constant"};
  ASSERT_EQ(start("a", even + Sets{"training.steps=6", "checkpoint.interval=3"}).get(), 0);
  std::filesystem::remove_all(path("a") + "/checkpoints/step-6");
  std::filesystem::remove(RunDirectory(path("a")).address());
  auto first = start("a", even + Sets{"elastic.members=2"});
  // One that joins waits for nobody: it would hold up the others.
  auto second = start("b", even + joining("a") + Sets{"elastic.members=3"});
  EXPECT_EQ(first.get() + second.get(), 0);
  const auto steps = lineage("a");
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_EQ(steps[2].members.size(), 1u);
  EXPECT_EQ(steps[3].members.size(), 2u) << "step 4 is trained again, by two";
  EXPECT_FALSE(replay_of("a").differs);
  // The second member began behind step 3.
  EXPECT_EQ(lineage("b").front().step, 4);
  try {
    std::filesystem::remove_all(path("b") + "/checkpoints");
    replay_of("b");
    ADD_FAILURE() << "there is nothing that the replay could begin with";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("has steps 4 to 12, and there is no checkpoint"));
  }
}

// Two groups begin with one seed, of one member and of two, so that sums are added in another
// order: two branches, whose steps have the same numbers.
TEST_F(ElasticJob, ABranchGoesOnFromItsOwnCheckpointsOnly) {
  const Sets half{"training.steps=6", "lr_scheduler.name=constant", "checkpoint.interval=3"};
  auto first = start("a", half + Sets{"elastic.members=2"});
  auto second = start("b", half + joining("a"));
  EXPECT_EQ(first.get() + second.get(), 0);
  ASSERT_EQ(start("alone", half).get(), 0);
  ASSERT_NE(lineage("alone").back().state, lineage("a").back().state);

  // It goes on from the other branch: none of its own steps leads there.
  const std::string checkpoint = "/checkpoints/step-6";
  std::filesystem::remove_all(path("a") + checkpoint);
  std::filesystem::copy(path("alone") + checkpoint, path("a") + checkpoint,
                        std::filesystem::copy_options::recursive);
  const Sets on{"lr_scheduler.name=constant", "training.steps=9", "checkpoint.interval=3"};
  std::filesystem::remove(RunDirectory(path("a")).address());
  ASSERT_EQ(start("a", on).get(), 0);
  auto steps = lineage("a");
  ASSERT_EQ(steps.front().step, 7);
  EXPECT_EQ(steps.front().before, lineage("alone").back().state);
  EXPECT_EQ(replay_of("a").first, 7);
  EXPECT_FALSE(replay_of("a").differs);

  // The checkpoint of the first branch is none of the second one's.
  std::filesystem::remove_all(path("a") + checkpoint);
  std::filesystem::copy(path("b") + checkpoint, path("a") + checkpoint,
                        std::filesystem::copy_options::recursive);
  try {
    replay_of("a");
    ADD_FAILURE() << "it begins with a checkpoint of the other branch";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("those of step 6 are of another branch of the group"));
  }
}

// Of two keepers one cannot decide anything: it ends, with what both have committed.
TEST_F(ElasticJob, AGroupThatEndsLeavesTheStateOfItsLastStep) {
  const Sets sets{"checkpoint.interval=0", "checkpoint.at_end=false",
                  "elastic.quorum_patience_s=0.5"};
  auto first = start("a", sets + Sets{"elastic.members=2", "debug.fault=error",
                                      "debug.fault_step=5", "debug.fault_action=0B1"});
  auto second = start("b", sets + joining("a"));
  EXPECT_THROW(first.get(), Error);
  EXPECT_THROW(second.get(), Error);
  EXPECT_EQ(lineage("b").back().step, 4);
  EXPECT_TRUE(std::filesystem::exists(path("b") + "/checkpoints/step-4"));
  EXPECT_TRUE(std::filesystem::exists(path("a") + "/checkpoints/step-4"));
  EXPECT_FALSE(replay_of("b").differs);
}

TEST_F(ElasticJob, WhoTrainsAnotherJobIsRefused) {
  std::atomic<int> stop = 0;
  auto group = start("a", {"training.steps=100000", "validation.interval=0"}, &stop);
  const auto refusal = [&](const Sets& sets) -> std::string {
    try {
      start("other", joining("a") + Sets{"training.steps=100000"} + sets).get();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      return error.what();
    }
    return "it is let in";
  };
  EXPECT_THAT(refusal({"optimizer.learning_rate=0.5"}),
              HasSubstr("optimizer.learning_rate is 0.003 there and 0.5 here"));
  EXPECT_THAT(refusal({"model.hidden=64"}), HasSubstr("model.hidden is 32 there and 64 here"));
  stop = SIGTERM;
  EXPECT_EQ(group.get(), 128 + SIGTERM);
  EXPECT_FALSE(replay_of("a").differs);
}

// The group asks for tokens: an expired and a used one are refused, and those that have one of
// their own train.
TEST_F(ElasticJob, MembersJoinWithATokenEach) {
  int files = 0;
  const auto with_token = [&](const std::string& token) -> Sets {
    const std::string file = path("token-" + std::to_string(++files));
    std::ofstream(file) << token << "\n";
    return Sets{"elastic.token_file=" + file} + joining("a");
  };
  const auto token = [](std::chrono::seconds good_for) {
    return wire::issue_join_token("of the issuer", "small",
                                  std::chrono::system_clock::now() + good_for);
  };
  const auto refusal_of = [&](const std::string& name, const std::string& shown) -> std::string {
    try {
      start(name, with_token(shown)).get();
    } catch (const Error& error) {
      return error.what();
    }
    return "it has joined";
  };
  auto first = start(
      "a", {"elastic.members=3", "elastic.token_key=" + hex(wire::token_key("of the issuer"))});
  EXPECT_THAT(refusal_of("expired", token(std::chrono::hours(-1))),
              HasSubstr("the join token is expired"));
  const std::string good = token(std::chrono::hours(1));
  auto second = start("b", with_token(good));
  joining("b");  // it is a member once it is found
  EXPECT_THAT(refusal_of("used", good), HasSubstr("the join token was used before"));
  EXPECT_THAT(refusal_of("none", ""), HasSubstr("is empty"));
  auto third = start("c", with_token(token(std::chrono::hours(1))));
  EXPECT_EQ(first.get() + second.get() + third.get(), 0);
  EXPECT_EQ(lineage("a").size(), 12u);
}

}  // namespace
}  // namespace shoal::train::elastic_job_test
