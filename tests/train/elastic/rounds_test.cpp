// Members of an elastic job that train by themselves for rounds of steps: against the ranks of a
// job that cannot lose any, what they write, and what a replay finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "tests/train/elastic/elastic_job.h"

namespace shoal::train::rounds_test {
namespace {

using testing::HasSubstr;

/// Four rounds of three steps.
const Sets kRounds{"low_communication.method=diloco", "low_communication.every=3",
                   "checkpoint.interval=3", "checkpoint.keep_last=0"};
/// As a job without end, for tests that stop it.
const Sets kForever =
    kRounds + Sets{"training.steps=99999", "validation.interval=0", "lr_scheduler.name=constant"};

class Rounds : public ElasticJob {
 protected:
  /// Runs two members to the end.
  void train_two(const std::string& first, const std::string& second, const Sets& sets) {
    auto one = start(first, sets + Sets{"elastic.members=2"});
    auto other = start(second, sets + joining(first));
    EXPECT_EQ(one.get() + other.get(), 0);
  }
  void expect_replayed(const std::string& name, std::int64_t first, std::int64_t last) const {
    const Replayed replayed = replay_of(name);
    EXPECT_FALSE(replayed.differs) << "of " << name << " behind step " << replayed.differs->step;
    EXPECT_EQ(replayed.first, first) << name;
    EXPECT_EQ(replayed.last, last) << name;
  }
};

// With two members the weights are one half, which rounds nothing.
TEST_F(Rounds, TwoMembersHaveTheBitsOfAJobOfTwoRanks) {
  for (const char* codec : {"none", "i4"}) {
    const Sets sets = kRounds + Sets{std::string("low_communication.codec=") + codec};
    const std::string ranks = std::string("ranks-") + codec;
    train_on_threads(path(ranks), small_job(path("data"), 12),
                     Sets{"training.micro_batch=1", "lr_scheduler.warmup_steps=0"} + sets, 2);
    const std::string a = std::string("a-") + codec;
    const std::string b = std::string("b-") + codec;
    train_two(a, b, sets);
    for (const int step : {3, 12}) {
      EXPECT_EQ(model_of(a, step), model_of(ranks, step)) << codec << " step " << step;
      EXPECT_EQ(model_of(b, step), model_of(ranks, step)) << codec << " step " << step;
    }
    const auto of_ranks = read_metrics(RunDirectory(path(ranks)).metrics());
    const auto own = metrics(a);
    const auto others = metrics(b);
    ASSERT_EQ(own.size(), 12u);
    ASSERT_EQ(others.size(), 12u);
    for (std::size_t i = 0; i < own.size(); ++i) {
      // Each knows its own loss, and that of all at the end of a round.
      const bool ends = i % 3 == 2;
      EXPECT_NEAR(ends ? own[i].loss : (own[i].loss + others[i].loss) / 2, of_ranks[i].loss, 1e-12)
          << "step " << i + 1;
      if (ends) {
        EXPECT_EQ(own[i].loss, others[i].loss);
      }
      EXPECT_EQ(own[i].members, 2);
    }
    EXPECT_EQ(own.back().evaluation->loss, of_ranks.back().evaluation->loss);
    expect_replayed(a, 1, 12);
    expect_replayed(b, 1, 12);
  }
}

TEST_F(Rounds, AReplayHasTheBitsOfThreeMembers) {
  for (const Sets& more :
       {Sets{}, Sets{"low_communication.codec=e3m0", "precision.type=fp16"},
        Sets{"precision.type=bf16", "low_communication.method=local_sgd", "training.steps=11"}}) {
    const std::string name = more.empty() ? "plain" : more.front();
    const std::string a = "a-" + name;
    const std::string b = "b-" + name;
    const std::string c = "c-" + name;
    auto first = start(a, kRounds + more + Sets{"elastic.members=3"});
    auto second = start(b, kRounds + more + joining(a));
    auto third = start(c, kRounds + more + joining(a));
    EXPECT_EQ(first.get() + second.get() + third.get(), 0);
    const auto rounds = lineage(a);
    ASSERT_EQ(rounds.size(), 4u) << name;
    EXPECT_EQ(lineage(b), rounds);
    EXPECT_EQ(lineage(c), rounds);
    const std::int64_t last = rounds.back().step;
    EXPECT_EQ(rounds.back().behind(), 9);
    for (const LineageStep& round : rounds) {
      ASSERT_EQ(round.members.size(), 3u);
      std::int64_t samples = 0;
      for (const LineageMember& member : round.members) samples += member.samples;
      EXPECT_EQ(samples, 8 * round.steps) << "no sample is left out, and none is there twice";
    }
    expect_replayed(a, 1, last);
    expect_replayed(c, 1, last);
  }
}

// The measured speeds decide who trains what: the lineage says it.
TEST_F(Rounds, MembersOfUnequalSpeedDivideTheSamplesOtherwise) {
  train_two("a", "b", kRounds + Sets{"low_communication.shares=by_speed"});
  const auto rounds = lineage("a");
  EXPECT_EQ(lineage("b"), rounds);
  ASSERT_EQ(rounds.size(), 4u);
  EXPECT_EQ(rounds[0].members[0].samples, 3 * 4) << "no speed is known at first";
  for (const LineageStep& round : rounds) {
    ASSERT_EQ(round.members.size(), 2u);
    EXPECT_EQ(round.members[0].first_sample, 8 * round.behind());
    EXPECT_EQ(round.members[1].first_sample - round.members[0].first_sample,
              round.members[0].samples / 3);
    EXPECT_EQ(round.members[0].samples + round.members[1].samples, 24);
  }
  expect_replayed("a", 1, 12);
}

// What it had trained in the round is lost with it, and no more than that.
TEST_F(Rounds, AMemberThatIsLostCostsItsOwnSamplesOfTheRound) {
  auto first = start("a", kRounds + Sets{"elastic.members=3"});
  auto second = start("b", kRounds + joining("a"));
  auto third =
      start("c", kRounds + joining("a") +
                     Sets{"debug.fault=error", "debug.fault_step=5", "debug.fault_action=0B1"});
  EXPECT_THROW(third.get(), Error);
  EXPECT_EQ(first.get() + second.get(), 0);
  const auto rounds = lineage("a");
  EXPECT_EQ(lineage("b"), rounds);
  ASSERT_EQ(rounds.size(), 4u);
  EXPECT_EQ(rounds[0].members.size(), 3u);
  ASSERT_EQ(rounds[1].members.size(), 2u);
  std::int64_t samples = 0;
  for (const LineageMember& member : rounds[1].members) samples += member.samples;
  EXPECT_GE(samples, 3 * 5) << "the round was divided among three: 3, 3 and 2 of 8 samples a step";
  EXPECT_LE(samples, 3 * 6);
  for (const LineageMember& member : rounds[2].members) EXPECT_EQ(member.samples, 3 * 4);
  // It was at the beginning of a round again when it ended.
  EXPECT_TRUE(std::filesystem::exists(path("c") + "/checkpoints/step-3"));
  EXPECT_FALSE(std::filesystem::exists(path("c") + "/checkpoints/step-4"));
  expect_replayed("a", 1, 12);
  const auto steps = metrics("a");
  EXPECT_EQ(steps.size(), 12u) << "no step is trained again";
}

TEST_F(Rounds, WhoComesLaterTrainsFromTheNextRoundOn) {
  std::atomic<int> stop = 0;
  std::atomic<int> stop_other = 0;
  const Sets sets = kForever + Sets{"low_communication.codec=i8"};
  auto first = start("a", sets, &stop);
  wait_for("a", [](const LineageStep& round) { return round.step >= 6; });
  auto second = start("b", sets + joining("a"), &stop_other);
  wait_for("b", [](const LineageStep& round) {
    return round.members.size() == 2 && round.members[1].samples > 0;
  });
  stop_other = SIGTERM;
  EXPECT_EQ(second.get(), 128 + SIGTERM);
  const std::int64_t left = lineage("b").back().step;
  wait_for("a", [&](const LineageStep& round) { return round.step > left + 6; });
  stop = SIGTERM;
  EXPECT_EQ(first.get(), 128 + SIGTERM);
  // Each was stopped in the middle of a round, and has saved the beginning of it.
  for (const char* name : {"a", "b"}) {
    const std::int64_t last = lineage(name).back().step;
    EXPECT_EQ(last % 3, 0);
    EXPECT_TRUE(std::filesystem::exists(path(name) + "/checkpoints/step-" + std::to_string(last)));
  }
  expect_replayed("a", 1, lineage("a").back().step);
  const auto joined = lineage("b");
  EXPECT_EQ(joined.front().members.size(), 2u);
  EXPECT_EQ(joined.front().members[1].samples, 0) << "the round was divided before it came";
  const auto own = metrics("b");
  ASSERT_GE(own.size(), 2u);
  EXPECT_EQ(own[0].step, joined.front().step) << "it has waited for the end of the round";
  EXPECT_EQ(own[1].step, own[0].step + 1);
  // The other optimizer had begun before its lineage did.
  try {
    replay_of("b");
    ADD_FAILURE() << "there is nothing that the replay could begin with";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no checkpoint"));
  }
}

// The first round never ends, so that one member waits in it for as long as it is there: it stops
// when it is asked to, has what it came with, and the other goes on.
TEST_F(Rounds, AMemberThatWaitsStopsWhenItIsAsked) {
  const Sets sets = kForever + Sets{"low_communication.every=50000", "checkpoint.interval=50000"};
  std::atomic<int> stop = 0;
  std::atomic<int> stop_other = 0;
  auto first = start("a", sets, &stop);
  auto second = start("b", sets + joining("a"), &stop_other);
  joining("b");
  const auto steps_of_a = [&] { return metrics("a").size(); };
  const auto wait_for_more = [&](std::size_t more) {
    const std::size_t all = steps_of_a() + more;
    for (const Deadline end = Deadline::in(std::chrono::minutes(1)); steps_of_a() < all;) {
      ASSERT_FALSE(end.passed());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  wait_for_more(20);
  stop_other = SIGTERM;
  EXPECT_EQ(second.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  wait_for_more(20);
  stop = SIGTERM;
  EXPECT_EQ(first.get(), 128 + SIGTERM);
  EXPECT_EQ(second.get(), 128 + SIGTERM);
  EXPECT_TRUE(metrics("b").empty()) << "it has had no part in any step";
}

// Of two members one has nothing to train: it takes the result of the other, also while its own
// last checkpoint is written.
TEST_F(Rounds, AMemberWithoutSamplesHasTheModelOfTheOthers) {
  std::atomic<int> stop = 0;
  std::atomic<int> stop_other = 0;
  const Sets sets = kForever + Sets{"training.micro_batch=8", "low_communication.every=1",
                                    "checkpoint.interval=1", "checkpoint.writer_share=0.01"};
  auto first = start("a", sets, &stop);
  auto second = start("b", sets + joining("a"), &stop_other);
  wait_for("b", [](const LineageStep& round) { return round.members.size() == 2; });
  const std::int64_t joined = lineage("b").back().step;
  wait_for("b", [&](const LineageStep& round) { return round.step >= joined + 8; });
  stop_other = SIGTERM;
  EXPECT_EQ(second.get(), 128 + SIGTERM);
  stop = SIGTERM;
  EXPECT_EQ(first.get(), 128 + SIGTERM);
  const auto step = static_cast<int>(lineage("b").back().step) - 3;
  EXPECT_EQ(model_of("a", step), model_of("b", step));
  for (const LineageStep& round : lineage("b")) {
    ASSERT_EQ(round.members.size(), 2u);
    EXPECT_EQ(round.members[1].samples, 0);
  }
  const auto steps = metrics("b");
  EXPECT_EQ(steps.back().step - steps.front().step, static_cast<std::int64_t>(steps.size()) - 1);
  expect_replayed("a", 1, lineage("a").back().step);
}

TEST_F(Rounds, AGroupThatEndedGoesOnFromTheCheckpointOfAMember) {
  const Sets even = kRounds + Sets{"lr_scheduler.name=constant"};
  train_two("a", "b", even + Sets{"training.steps=6"});
  std::filesystem::remove(RunDirectory(path("a")).address());
  std::filesystem::remove(RunDirectory(path("a")).members());
  std::filesystem::remove(RunDirectory(path("b")).members());
  train_two("a", "b", even);
  const auto rounds = lineage("a");
  ASSERT_EQ(rounds.size(), 4u);
  EXPECT_EQ(rounds[2].before, rounds[1].state);
  EXPECT_TRUE(rounds[2].members[0].is_new) << "its optimizer begins with the process";
  EXPECT_TRUE(rounds[2].members[1].is_new);
  expect_replayed("a", 1, 12);
}

// Of two members nobody knows which one is wrong: both attempt the end of the round again.
TEST_F(Rounds, ADifferenceIsFoundBeforeItIsCommitted) {
  auto first = start("a", kRounds + Sets{"elastic.members=2"});
  auto second = start("b", kRounds + joining("a") + Sets{"debug.fault=flip", "debug.fault_step=5"});
  EXPECT_EQ(first.get() + second.get(), 0);
  const auto rounds = lineage("a");
  ASSERT_EQ(rounds.size(), 4u);
  EXPECT_GT(rounds[1].epoch, rounds[0].epoch) << "no attempt was given up";
  EXPECT_EQ(rounds[2].epoch, rounds[1].epoch);
  EXPECT_EQ(rounds[1].members.size(), 2u);
  expect_replayed("a", 1, 12);
}

// The anchor of ranks that were members of one job becomes that of the group.
TEST_F(Rounds, AGroupGoesOnFromTheMembersOfAJob) {
  const Sets sets = kRounds + Sets{"low_communication.codec=i8", "lr_scheduler.name=constant"};
  train_on_threads(path("a"), small_job(path("data"), 6),
                   Sets{"training.micro_batch=1", "lr_scheduler.warmup_steps=0"} + sets, 2);
  const auto before = model_of("a", 6);
  ASSERT_EQ(start("a", sets).get(), 0);
  const auto rounds = lineage("a");
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds.front().behind(), 6);
  EXPECT_NE(model_of("a", 12), before);
  expect_replayed("a", 7, 12);
}

}  // namespace
}  // namespace shoal::train::rounds_test
