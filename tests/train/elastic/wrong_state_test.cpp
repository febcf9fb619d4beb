// Members of an elastic job whose state is wrong, or who give a wrong one to joiners: they are
// named, and nobody else gets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "shoal/base/error.h"
#include "tests/train/elastic/elastic_job.h"

namespace shoal::train::wrong_state_test {
namespace {

using testing::HasSubstr;

class WrongState : public ElasticJob {
 protected:
  static std::string refusal_of(std::future<int>& member) {
    try {
      member.get();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
      return error.what();
    }
    return "it has trained";
  }
  /// Its next start, or that of a whole group, would go on from a wrong state.
  void expect_not_saved(const std::string& name) const {
    EXPECT_FALSE(std::filesystem::exists(path(name) + "/checkpoints/step-5"));
    EXPECT_THAT(log_of(name), HasSubstr("the state of step 5 is not saved"));
  }
  const Sets kBehindStep5{"debug.fault=flip", "debug.fault_step=5", "debug.fault_action=commit",
                          "checkpoint.interval=0"};
  /// The id by which others know the member in that folder.
  std::string id_of(const std::string& name) const {
    std::ifstream in(RunDirectory(path(name)).address());
    std::string id;
    std::getline(in, id);
    std::getline(in, id);
    return id;
  }
};

// Two that have just joined have the same wrong state, and are more than the one that has the right
// one. What they have computed with it is in nobody's state.
TEST_F(WrongState, JoinersThatHaveItAreRemovedAndOutvoteNobody) {
  const Sets wrong{"debug.fault=flip", "debug.fault_step=1", "debug.fault_action=take"};
  auto first = start("a", {"elastic.members=3"});
  auto second = start("b", joining("a") + wrong);
  auto third = start("c", joining("a") + wrong);
  EXPECT_THAT(refusal_of(second), HasSubstr("removed"));
  EXPECT_THAT(refusal_of(third), HasSubstr("removed"));
  EXPECT_EQ(first.get(), 0);
  ASSERT_EQ(start("undisturbed", {}).get(), 0);
  const auto steps = lineage("a");
  const auto undisturbed = lineage("undisturbed");
  ASSERT_EQ(steps.size(), 12u);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].members.size(), 1u);
    EXPECT_EQ(steps[i].state, undisturbed[i].state) << "step " << i + 1;
  }
  EXPECT_THAT(log_of("a"), HasSubstr("step 0 led to 2 different states; odd: "));
}

// A bit of the state that two have committed changes in the memory of one. Neither of them could
// outvote the other, but each knows what was committed.
TEST_F(WrongState, OfTwoMembersTheOneThatHasItEnds) {
  auto first = start("a", {"elastic.members=2"});
  auto second = start("b", joining("a") + kBehindStep5);
  try {
    second.get();
    ADD_FAILURE() << "it has trained";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_THAT(error.what(), HasSubstr("is not the one that all had behind step 5"));
  }
  EXPECT_EQ(first.get(), 0);
  const auto steps = lineage("a");
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_EQ(steps[4].members.size(), 2u);
  EXPECT_EQ(steps[5].members.size(), 1u);
  EXPECT_FALSE(replay_of("a").differs);
  expect_not_saved("b");
}

TEST_F(WrongState, WhoIsRemovedForItDoesNotSaveIt) {
  auto first = start("a", {"elastic.members=3"});
  auto second = start("b", joining("a"));
  auto third = start("c", joining("a") + kBehindStep5);
  EXPECT_THAT(refusal_of(third), HasSubstr("removed"));
  EXPECT_EQ(first.get() + second.get(), 0);
  EXPECT_EQ(lineage("a").at(5).members.size(), 2u);
  EXPECT_FALSE(replay_of("a").differs);
  expect_not_saved("c");
}

// The first member of a view is asked first. The one that is so when the last joiner comes gives
// what is not the state of which all know the digest.
TEST_F(WrongState, AMemberThatGivesItIsNamedAndAnotherOneIsAsked) {
  const Sets forever{"training.steps=100000", "validation.interval=0", "checkpoint.interval=0"};
  const Sets lying{"debug.fault=flip", "debug.fault_step=1", "debug.fault_action=give"};
  std::atomic<int> stop_founder = 0;
  std::atomic<int> stop = 0;
  auto founder = start("a", forever + Sets{"elastic.members=2"}, &stop_founder);
  auto liar = start("b", forever + joining("a") + lying, &stop);
  wait_for("b", [](const LineageStep& step) { return step.members.size() == 2; });
  auto third = start("c", forever + joining("a"), &stop);
  wait_for("c", [](const LineageStep& step) { return step.members.size() == 3; });
  EXPECT_THAT(log_of("c"), Not(HasSubstr("has sent a state"))) << "the founder gives the right one";
  stop_founder = SIGTERM;
  EXPECT_EQ(founder.get(), 128 + SIGTERM);
  wait_for("c", [](const LineageStep& step) { return step.members.size() == 2; });
  EXPECT_EQ(lineage("c").back().members.front().id, id_of("b"));

  auto last = start("d", forever + joining("c"), &stop);
  wait_for("d", [](const LineageStep& step) { return step.members.size() == 3; });
  EXPECT_THAT(log_of("d"), HasSubstr("member " + id_of("b") + " has sent a state with digest"));
  stop = SIGTERM;
  for (auto* member : {&liar, &third, &last}) EXPECT_EQ(member->get(), 128 + SIGTERM);
  // The founder was there from the first step on; of the others' steps they say the same.
  EXPECT_FALSE(replay_of("a").differs);
  const auto steps = lineage("c");
  for (const LineageStep& step : lineage("d")) {
    // Who ends first knows no more of them.
    if (step.step > steps.back().step) break;
    EXPECT_EQ(steps.at(static_cast<std::size_t>(step.step - steps.front().step)), step);
  }
}

}  // namespace
}  // namespace shoal::train::wrong_state_test
