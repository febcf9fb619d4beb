// The elastic example as processes that are killed in the middle of a reduce, stopped and added:
// every step that any of them has committed is that of one process that replays the lineage.
#include "tests/collective/elastic_processes/elastic_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"

namespace shoal::collective::elastic::elastic_processes_test {
namespace {

using testing::HasSubstr;

/// Whatever the place of the one that dies, the others go on with the step that it died in.
void expect_step_30_without(const std::vector<MemberProcess*>& members, int dead) {
  for (int i = 0; i < 3; ++i) {
    if (i == dead) continue;
    for (const LineageStep& step : members[static_cast<std::size_t>(i)]->lineage()) {
      if (step.step == 29) {
        EXPECT_EQ(step.members.size(), 3u);
        EXPECT_EQ(step.keepers, 3u);
      }
      if (step.step == 30) {
        EXPECT_EQ(step.members.size(), 2u);
      }
    }
  }
}

TEST_F(ElasticProcesses, ComeAndGo) {
  const std::vector<MemberProcess*> first = start_three(2);
  EXPECT_EQ(first[2]->wait(soon()), -SIGKILL);
  ASSERT_TRUE(has_members(*first[0], {first[0], first[1]}));
  expect_step_30_without(first, 2);

  MemberProcess& late = start(first[1]);
  ASSERT_TRUE(has_members(*first[0], {first[0], first[1], &late}));
  stop(*first[1]);
  ASSERT_TRUE(has_members(late, {first[0], &late}));
  stop(*first[0]);
  ASSERT_TRUE(has_members(late, {&late}));
  stop(late);
  EXPECT_GT(replay(), 31u);
}

// Long before silence says so: the host says that nobody listens where the killed one was.
TEST_F(ElasticProcesses, WhoIsKilledIsMissedBeforeItIsSilentForLong) {
  const std::vector<std::string> patient = {"--suspect-after-s", "60"};
  MemberProcess& first = start(nullptr, patient);
  MemberProcess& second = start(&first, patient);
  ASSERT_TRUE(has_members(first, {&first, &second}));
  second.signal(SIGKILL);
  const auto killed = Clock::now();
  ASSERT_TRUE(has_members(first, {&first}));
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(30));
  stop(first);
}

std::vector<std::string> that_follow(const std::string& policy) {
  return {"--on-quorum-loss", policy, "--quorum-patience-s", "1", "--suspect-after-s", "4"};
}

// The first of three that is left goes on alone. What the dead have seen committed last it may have
// missed, so its own lineage is what counts.
TEST_F(ElasticProcesses, SurvivorsGoOnWhereTheMajorityIsKilled) {
  std::vector<MemberProcess*> members;
  for (int i = 0; i < 3; ++i)
    members.push_back(&start(i == 0 ? nullptr : members[0], that_follow("survivors")));
  ASSERT_TRUE(has_keepers(*members[1], 3));
  members[0]->signal(SIGKILL);
  members[2]->signal(SIGKILL);
  const auto killed = Clock::now();
  ASSERT_TRUE(has_members(*members[1], {members[1]}));
  RecordProperty("ms_to_next_commit",
                 static_cast<int>((Clock::now() - killed) / std::chrono::milliseconds(1)));
  stop(*members[1]);
  EXPECT_GT(replay(members[1]), 3u);
}

/// Two members and a witness, which are the three keepers once a step is committed.
class ElasticProcessesWithAWitness : public ElasticProcesses {
 protected:
  MemberProcess& first = start(nullptr, that_follow("witness"));
  MemberProcess& second = start(&first, that_follow("witness"));
  MemberProcess& witness = start_witness();

 private:
  MemberProcess& start_witness() {
    std::vector<std::string> words = that_follow("witness");
    words.insert(words.end(), {"--role", "witness"});
    return start(&first, words);
  }
};

TEST_F(ElasticProcessesWithAWitness, EitherOfTwoMayBeKilled) {
  ASSERT_TRUE(has_keepers(second, 3));
  first.signal(SIGKILL);  // the owner
  ASSERT_TRUE(has_members(second, {&second}));
  stop(second);
}

// Two of the three keepers are killed at once: the member that is left ends, and says why.
TEST_F(ElasticProcessesWithAWitness, WithItTheMajorityIsLost) {
  ASSERT_TRUE(has_keepers(second, 3));
  first.signal(SIGKILL);
  witness.signal(SIGKILL);
  EXPECT_EQ(second.wait(soon()), exit_code(ErrorKind::kPeerLost));
  EXPECT_THAT(second.text("stderr"), HasSubstr("lost the majority of the keepers"));
  EXPECT_THAT(second.text("stderr"), HasSubstr(witness.name(soon())));
}

}  // namespace
}  // namespace shoal::collective::elastic::elastic_processes_test
