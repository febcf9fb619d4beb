// An elastic job whose decisions an etcd keeps, as processes that are killed, while the etcd is
// killed and started again: every step that any of them has committed is that of `shoal replay`.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "shoal/train/config/lineage.h"
#include "tests/apps/churn/elastic_members.h"
#include "tests/support/etcd_server.h"

namespace shoal::apps::testing::etcd_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class WithEtcd : public ElasticMembers {
 protected:
  void SetUp() override {
    write_job(fmt::format("suspect_after_s = 2\netcd = [\"{}\"]\netcd_patience_s = 300\n",
                          etcd_.address()));
  }
  /// Starts a member; the first one begins the group.
  Member& start() {
    std::vector<std::string> more;
    if (!members_.empty()) more = {"--join", address(all_living().front()->name)};
    Member& member = ElasticMembers::start(fmt::format("run-{}", members_.size()), more);
    EXPECT_TRUE(appears(folder_, member.name + "/address"));
    wait_until_all_train();
    return member;
  }
  void expect_more_steps(const Member& member) {
    const std::int64_t before = last_step(member.name).step;
    wait_for_step(member.name, "beyond the last one",
                  [&](const train::LineageStep& step) { return step.step > before + 20; });
  }

  shoal::testing::EtcdServer etcd_;
};

TEST_F(WithEtcd, EveryStepIsThatOfAReplayThoughMembersAndTheEtcdAreKilled) {
  Member& owner = start();
  Member& second = start();
  Member& third = start();
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(third));
  etcd_.kill();
  // Each member may commit the step whose decision it was about to learn, and no other one.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const std::int64_t step = last_step(third.name).step;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_EQ(last_step(third.name).step, step) << "a step was committed without the etcd";
  etcd_.start();
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(third));
  EXPECT_EQ(last_step(third.name).members.size(), 3u) << "somebody was removed meanwhile";

  // The owner dies while the etcd is away.
  etcd_.kill();
  end(owner, SIGKILL);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  etcd_.start();
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(third));

  // One of two is no majority. It goes on, and another one joins it.
  end(second, SIGKILL);
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(third));
  Member& fourth = start();
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(fourth));
  for (Member* member : all_living()) EXPECT_EQ(end(*member, SIGTERM).code, 128 + SIGTERM);

  const auto steps = all_steps();
  const auto branch = branch_to(furthest_of(steps), steps);
  EXPECT_EQ(branch.size(), steps.size()) << "the group has gone on in two branches";
  expect_replay_of(branch, third.name, "replayed");
}

// SHOAL_CHURN_SEED chooses what happens, SHOAL_CHURN_SECONDS how long.
TEST_F(WithEtcd, EveryStepIsThatOfAReplayWhateverIsKilled) {
  const double seconds = number_in("SHOAL_CHURN_SECONDS", 8);
  const auto seed = static_cast<std::uint64_t>(number_in("SHOAL_CHURN_SEED", 7));
  fmt::print("seed {} (SHOAL_CHURN_SEED), {} seconds (SHOAL_CHURN_SECONDS)\n", seed, seconds);
  std::mt19937_64 random(seed);
  const auto one_of = [&](std::vector<Member*> members) {
    return members[random() % members.size()];
  };
  const auto pause = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
  };
  std::map<std::string, int> events;
  start();
  start();
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(seconds)) {
    const bool is_away = random() % 2 == 0;
    if (is_away) etcd_.kill();
    pause();
    const std::vector<Member*> living = all_living();
    if (living.size() > 1 && random() % 2 == 0) {
      ++events[is_away ? "killed without the etcd" : "killed"];
      end(*one_of(living), SIGKILL);
    } else if (random() % 2 == 0) {
      // For less than the others wait: nobody is removed.
      ++events[is_away ? "stopped without the etcd" : "stopped"];
      const Member& member = *one_of(living);
      member.program->signal(SIGSTOP);
      pause();
      member.program->signal(SIGCONT);
    }
    pause();
    if (is_away) etcd_.start();
    ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
    if (all_living().size() < 3) {
      ++events["joined"];
      start();
    }
    if (HasFailure()) return;
    ASSERT_NO_FATAL_FAILURE(expect_more_steps(*one_of(all_living())));
  }
  for (Member* member : all_living()) EXPECT_EQ(end(*member, SIGTERM).code, 128 + SIGTERM);
  const auto steps = all_steps();
  const auto branch = branch_to(furthest_of(steps), steps);
  EXPECT_EQ(branch.size(), steps.size()) << "the group has gone on in two branches";
  expect_replay_of(branch, members_.back()->name, "replayed");
  for (const auto& [event, count] : events) fmt::print("{}: {} times\n", event, count);
  fmt::print("{} steps, {} processes\n", branch.size(), members_.size());
}

TEST_F(WithEtcd, AJobSaysWhereItsEtcdIsMissing) {
  etcd_.kill();
  const Outcome outcome =
      run({shoal_program(), "train", "job.toml", "--run-dir", "run"}, folder_.path());
  EXPECT_EQ(outcome.code, 202);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("no etcd says which cluster it is"),
                                 HasSubstr(etcd_.address()), HasSubstr("Hint: ")));
}

}  // namespace
}  // namespace shoal::apps::testing::etcd_test
