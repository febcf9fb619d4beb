// Members of an elastic job that have several ranks, each a process of a launcher of its own: a
// rank that is killed ends its member, and the others go on.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/apps/churn/elastic_members.h"

namespace shoal::apps::testing::wide_member_test {
namespace {

class WideMember : public ElasticMembers {
 protected:
  void SetUp() override { write_job("suspect_after_s = 1\nquorum_patience_s = 1\n"); }
  static std::vector<std::string> two_ranks(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--nproc", "2", "--set", "parallelism.zero_stage=3"});
    return more;
  }
  /// Returns the process of the rank 1 that a launcher has started; 0: there is none.
  static pid_t follower_of(const Member& member) {
    const std::string launcher = std::to_string(member.program->process());
    std::ifstream children("/proc/" + launcher + "/task/" + launcher + "/children");
    for (pid_t child = 0; children >> child;) {
      std::ifstream in("/proc/" + std::to_string(child) + "/cmdline");
      std::string words{std::istreambuf_iterator<char>(in), {}};
      std::replace(words.begin(), words.end(), '\0', ' ');
      if (words.find("--rank 1 ") != std::string::npos) return child;
    }
    return 0;
  }
};

TEST_F(WideMember, IsLostWithOneOfItsRanksAndComesBack) {
  start("a", two_ranks());
  Member& other = start("b", two_ranks({"--join", address("a")}));
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  const pid_t follower = follower_of(other);
  ASSERT_GT(follower, 0);
  ASSERT_EQ(::kill(follower, SIGKILL), 0);
  const Outcome lost = other.program->wait();
  other.lives = false;
  EXPECT_EQ(lost.code, 128 + SIGKILL) << lost.err;
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  const std::int64_t alone = last_step("a").step;

  start("b", two_ranks({"--join", address("a")}));
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  EXPECT_GT(last_step("b").step, alone);
  for (Member* member : all_living()) EXPECT_EQ(end(*member, SIGTERM).code, 128 + SIGTERM);
  const auto steps = all_steps();
  const auto branch = branch_to(furthest_of(steps), steps);
  expect_replay_of(branch, "a", "replayed");
}

}  // namespace
}  // namespace shoal::apps::testing::wide_member_test
