// Processes of an elastic job that come back with the command they were first started with: they
// find the group that they were in, or say why they do not.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>

#include "shoal/base/clock.h"
#include "shoal/wire/address.h"
#include "tests/apps/churn/elastic_members.h"

namespace shoal::apps::testing::returning_member_test {
namespace {

using ::testing::HasSubstr;

class ReturningMember : public ElasticMembers {
 protected:
  void SetUp() override { write_job("suspect_after_s = 1\nquorum_patience_s = 1\n"); }
  static bool connects_to(const std::string& line) {
    const auto to = wire::parse_endpoint(line.substr(0, line.find('\n')));
    const bool connects = wire::connect_once(to, Deadline::in(std::chrono::seconds(1))).get() >= 0;
    if (!connects) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return connects;
  }
};

TEST_F(ReturningMember, TheFounderJoinsTheGroupThatTrainsOn) {
  Member& founder = start("a");
  start("b", {"--join", address("a")});
  start("c", {"--join", address("a")});
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  end(founder, SIGKILL);
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  const std::int64_t behind = last_step("b").step;

  start("a");
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  EXPECT_GT(last_step("a").step, behind);
  for (Member* member : all_living()) EXPECT_EQ(end(*member, SIGTERM).code, 128 + SIGTERM);
  // There is one group: each step has one state.
  std::map<std::int64_t, std::string> states;
  for (const auto& [state, step] : all_steps())
    EXPECT_TRUE(states.emplace(step.step, state).second) << "two groups have step " << step.step;
}

TEST_F(ReturningMember, AGroupThatIsGoneGoesOnFromTheCheckpointOfItsFounder) {
  Member& founder = start("a");
  Member& other = start("b", {"--join", address("a")});
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  EXPECT_EQ(end(other, SIGTERM).code, 128 + SIGTERM);
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  EXPECT_EQ(folder_.read("a/members"), "") << "its last view has itself alone";
  EXPECT_EQ(end(founder, SIGTERM).code, 128 + SIGTERM);
  const std::int64_t behind = last_step("a").step;

  // As if the other had been there to the end. Nobody listens at that port.
  folder_.write("a/members", "127.0.0.1:1\n");
  Member& again = start("a");
  ASSERT_NO_FATAL_FAILURE(wait_for_step("a", "of its second start",
                                        [&](const auto& step) { return step.step > behind; }));
  EXPECT_THAT(end(again, SIGTERM).out,
              HasSubstr("None of the 1 other member that this run was last with is there any more: "
                        "it begins a new group behind step " +
                        std::to_string(behind)));
}

// After a power cut all start again with their commands. The founder finds others at the addresses
// of its last view, and they wait for it.
TEST_F(ReturningMember, AllComeBackAtOnce) {
  const int port = 20000 + ::getpid() % 1000 * 20;
  const auto ports = [](int first) {
    return std::vector<std::string>{"--set", fmt::format("elastic.ports={}-{}", first, first + 9)};
  };
  auto join = ports(port + 10);
  start("a", ports(port));
  const std::string founder = address("a");
  join.insert(join.end(), {"--join", founder});
  start("b", join);
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  for (Member* member : all_living()) end(*member, SIGKILL);

  start("b", join);
  const Deadline deadline = Deadline::in(std::chrono::minutes(1));
  while (!connects_to(folder_.read("a/members"))) ASSERT_FALSE(deadline.passed());
  start("a", ports(port));
  EXPECT_EQ(address("a"), founder);
  wait_until_all_train();
}

TEST_F(ReturningMember, AGroupThatIsSilentIsNotBegunAgain) {
  // Connections are made there, and nobody says anything.
  const wire::Descriptor listener = wire::listen_on("127.0.0.1", {});
  const std::string silent = wire::local_endpoint(listener.get()).text();
  folder_.write("a/members", silent + "\n");
  Member& founder = start("a");
  founder.lives = false;
  const Outcome outcome = founder.program->wait();
  EXPECT_EQ(outcome.code, 202) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("this run was last in a group with members at " + silent));
  EXPECT_THAT(outcome.err, HasSubstr("remove a/members"));
  EXPECT_EQ(folder_.read("a/lineage.jsonl"), "");
}

}  // namespace
}  // namespace shoal::apps::testing::returning_member_test
