// Steps that all members commit or none, joiners that are sent the state, and what each failure
// costs. Members are threads here; tests/examples has processes that are killed.
#include "shoal/collective/elastic/elastic_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/collective/elastic/some_members.h"

namespace shoal::collective::elastic::elastic_group_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ElasticGroup, CommitsTheStepsOfOneMember) {
  Member alone;
  alone.group = ElasticGroup::found(alone.options());
  for (int i = 0; i < 3; ++i) alone.step();
  EXPECT_EQ(alone.value, 4);
  EXPECT_EQ(alone.applied, 3);
  EXPECT_EQ(alone.group->samples(), 3u);
  EXPECT_EQ(alone.results[2].step, 2u);
  EXPECT_EQ(alone.results[2].first_sample, 2u);
  EXPECT_EQ(alone.results[2].state, StateAccess::sha256(Member::bytes_of(4)));
  EXPECT_THROW(alone.group->step(7, nullptr, nullptr), Error);
  EXPECT_TRUE(alone.group->leave());
  EXPECT_THROW(alone.step(), Error);
}

TEST(ElasticGroup, GivesTheStateToThoseThatJoin) {
  Member founder;
  founder.group = ElasticGroup::found(founder.options());
  for (int i = 0; i < 3; ++i) founder.step();
  const wire::Endpoint contact = founder.group->endpoint();
  const auto join = [&](Member& member) {
    member.value = -100;
    member.group = ElasticGroup::join(member.options(), {contact});
    EXPECT_EQ(member.group->next_step(), 3u);
    EXPECT_EQ(member.value, 4);
    member.group->wait_for_members(3, soon());
    for (int i = 0; i < 4; ++i) member.step();
  };
  Member second;
  Member third;
  Thread a([&] { join(second); });
  Thread b([&] { join(third); });
  founder.group->wait_for_members(3, soon());
  for (int i = 0; i < 4; ++i) founder.step();
  a.join();
  b.join();
  EXPECT_EQ(a.error, "");
  EXPECT_EQ(b.error, "");
  for (const Member* member : {&founder, &second, &third}) {
    EXPECT_EQ(member->value, 4 + 4 * 6);
    EXPECT_EQ(member->group->next_step(), 7u);
    EXPECT_EQ(member->group->samples(), 3u + 4 * 3);
    EXPECT_EQ(member->results.back().view.members.size(), 3u);
  }
  EXPECT_EQ(second.applied, 4);
}

// Each of three joins while the others are in the middle of an attempt, which they finish.
TEST(ElasticGroup, LetsJoinersInBehindTheStepThatRuns) {
  constexpr std::size_t kMembers = 4;
  Member founder;
  std::vector<Member> joiners(kMembers - 1);
  std::vector<std::unique_ptr<Thread>> threads;
  const auto step_until_all_are_there = [](Member& member) {
    for (int together = 0; together < 3;) {
      member.step();
      together += member.results.back().view.members.size() == kMembers;
    }
  };
  founder.group = ElasticGroup::found(founder.options());
  founder.meanwhile = [&](const Roster& roster) {
    const std::size_t begun = threads.size();
    if (begun < joiners.size() && static_cast<std::size_t>(roster.size) == begun + 1) {
      threads.push_back(std::make_unique<Thread>([&, begun] {
        Member& joiner = joiners[begun];
        joiner.group = ElasticGroup::join(joiner.options(), {founder.group->endpoint()});
        step_until_all_are_there(joiner);
      }));
    }
    // It asks to join meanwhile.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  };
  step_until_all_are_there(founder);
  for (const auto& thread : threads) {
    thread->join();
    EXPECT_EQ(thread->error, "");
  }
  std::vector<const Member*> all{&founder};
  for (const Member& joiner : joiners) all.push_back(&joiner);
  for (const Member* member : all) {
    EXPECT_EQ(member->value, founder.value);
    EXPECT_EQ(member->attempts, member->applied);
    EXPECT_THAT(member->faults, ElementsAre());
    for (const StepResult& result : member->results) EXPECT_EQ(result.attempts, 1);
  }
}

// Nobody commits a step here: the joiners come in while the others compute.
TEST(ElasticGroup, LetsJoinersInBetweenTwoSteps) {
  Member founder;
  founder.group = ElasticGroup::found(founder.options());
  founder.step();
  const auto compute_until_all_are_there = [](Member& member) {
    const Deadline end = soon();
    while (member.group->view().members.size() < 3 && !end.passed()) {
      member.group->let_join();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(member.group->view().members.size(), 3u);
    EXPECT_EQ(member.group->next_step(), 1u);
    for (int i = 0; i < 2; ++i) member.step();
  };
  std::vector<Member> joiners(2);
  std::vector<std::unique_ptr<Thread>> threads;
  for (Member& joiner : joiners) {
    threads.push_back(std::make_unique<Thread>([&] {
      joiner.group = ElasticGroup::join(joiner.options(), {founder.group->endpoint()});
      compute_until_all_are_there(joiner);
    }));
  }
  compute_until_all_are_there(founder);
  for (const auto& thread : threads) {
    thread->join();
    EXPECT_EQ(thread->error, "");
  }
  for (const Member* member : {&founder, &joiners[0], &joiners[1]}) {
    EXPECT_EQ(member->value, 2 + 2 * 6);
    EXPECT_EQ(member->attempts, member->applied);
    EXPECT_THAT(member->faults, ElementsAre());
  }
}

TEST(ElasticGroup, GoesOnWhenAMemberLeavesInOrder) {
  Member founder;
  founder.group = ElasticGroup::found(founder.options());
  Member second;
  Thread other([&] {
    second.group = ElasticGroup::join(second.options(), {founder.group->endpoint()});
    for (int i = 0; i < 2; ++i) second.step();
    EXPECT_TRUE(second.group->leave());
  });
  founder.group->wait_for_members(2, soon());
  while (founder.group->next_step() < 5) founder.step();
  other.join();
  EXPECT_EQ(other.error, "");
  EXPECT_EQ(second.value, 1 + 2 * 3);
  EXPECT_EQ(founder.value, 1 + 2 * 3 + 3 * 1);
  EXPECT_EQ(founder.applied, 5);
}

TEST(ElasticGroup, GoesOnWhenAMemberStopsWithoutAWord) {
  Member founder;
  founder.group = ElasticGroup::found(founder.options(watchful()));
  Member second;
  Thread other([&] {
    second.group = ElasticGroup::join(second.options(watchful()), {founder.group->endpoint()});
    for (int i = 0; i < 2; ++i) second.step();
    second.group = nullptr;
  });
  Member third;
  Thread another([&] {
    third.group = ElasticGroup::join(third.options(watchful()), {founder.group->endpoint()});
    third.group->wait_for_members(3, soon());
    while (third.group->next_step() < 5) third.step();
  });
  founder.group->wait_for_members(3, soon());
  while (founder.group->next_step() < 5) founder.step();
  other.join();
  another.join();
  EXPECT_EQ(other.error, "");
  EXPECT_EQ(another.error, "");
  EXPECT_EQ(second.applied, 2);
  EXPECT_EQ(founder.value, 1 + 2 * 6 + 3 * 3);
  EXPECT_EQ(third.value, founder.value);
  EXPECT_EQ(founder.results[2].view.members.size(), 2u);
  EXPECT_FALSE(founder.faults.empty());
}

TEST(ElasticGroup, AttemptsAStepAgainWhereOneMemberFailsInIt) {
  Member founder;
  founder.group = ElasticGroup::found(founder.options());
  Member second;
  Thread other([&] {
    second.group = ElasticGroup::join(second.options(), {founder.group->endpoint()});
    second.step();
    // This one fails behind the sum, so that the founder has surely made an attempt by then.
    try {
      second.group->step(
          1,
          [&](const std::shared_ptr<Communicator>& group, const Roster& roster) -> Attempt {
            second.attempt(*group, roster);
            throw std::runtime_error("no data");
          },
          [] { FAIL() << "nothing was committed"; });
      ADD_FAILURE() << "the exception was not thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "no data");
    }
    second.step();
  });
  founder.group->wait_for_members(2, soon());
  founder.step();
  founder.step();
  other.join();
  EXPECT_EQ(other.error, "");
  EXPECT_EQ(founder.value, 1 + 2 * 3);
  EXPECT_EQ(second.value, founder.value);
  EXPECT_EQ(founder.applied, 2);
  EXPECT_GE(founder.results[1].attempts, 2);
  EXPECT_THAT(founder.faults, testing::Contains(HasSubstr("no data")));
}

// The other member says that its attempt is done when the time of this one is over. As this one has
// said so in time, the step is committed, and it must not miss that.
TEST(ElasticGroup, LearnsOfACommitThatTakesLongerThanTheStepMay) {
  Member founder;
  ElasticGroup::Options options = founder.options();
  options.step_timeout = std::chrono::seconds(4);
  founder.group = ElasticGroup::found(std::move(options));
  Member second;
  Thread other([&] {
    second.group = ElasticGroup::join(second.options(), {founder.group->endpoint()});
    second.results.push_back(second.group->step(
        0,
        [&](const std::shared_ptr<Communicator>& group, const Roster& roster) {
          const Attempt made = second.attempt(*group, roster);
          std::this_thread::sleep_for(std::chrono::seconds(6));
          return made;
        },
        [&] { second.apply(); }));
  });
  founder.group->wait_for_members(2, soon());
  founder.step();
  other.join();
  EXPECT_EQ(other.error, "");
  EXPECT_EQ(founder.applied, 1);
  EXPECT_EQ(founder.value, second.value);
  EXPECT_EQ(founder.results[0].state, second.results[0].state);
}

// Two that wait for each other are no group.
TEST(ElasticGroup, GivesUpWhereOnlyJoinersAreFound) {
  const wire::Endpoint nowhere{.host = "127.0.0.1", .port = 1};
  const auto waiting = LetterCarrier::join(network(patient()), {nowhere});
  Member member;
  ElasticGroup::Options options = member.options();
  options.search_timeout = std::chrono::seconds(3);
  try {
    ElasticGroup::join(std::move(options), {nowhere, waiting->endpoint()});
    ADD_FAILURE() << "it has joined a joiner";
  } catch (const NoGroupFound& error) {
    EXPECT_EQ(error.joiners, 1u);
    EXPECT_THAT(error.what(), HasSubstr("is in a group with this key"));
  }
}

// The group answers at once, and lets the joiner in when its step is done.
TEST(ElasticGroup, AJoinerThatHasFoundTheGroupWaitsForItsStep) {
  Member founder;
  founder.group = ElasticGroup::found(founder.options());
  Member second;
  ElasticGroup::Options options = second.options();
  options.search_timeout = std::chrono::seconds(3);
  std::optional<Thread> other;
  founder.meanwhile = [&](const Roster&) {
    other.emplace([&] {
      second.group = ElasticGroup::join(std::move(options), {founder.group->endpoint()});
      second.step();
    });
    std::this_thread::sleep_for(std::chrono::seconds(4));
  };
  founder.step();
  founder.meanwhile = [](const Roster&) {};
  while (founder.group->view().members.size() < 2) founder.step();
  other->join();
  EXPECT_EQ(other->error, "");
  EXPECT_EQ(second.applied, 1);
}

TEST(ElasticGroup, AsksTheNextMemberWhereOneGivesAWrongState) {
  Member founder;
  founder.group = ElasticGroup::found(founder.options());
  Member second;
  Member third;
  Thread a([&] {
    second.group = ElasticGroup::join(second.options(), {founder.group->endpoint()});
    second.group->wait_for_members(2, soon());
    second.step();
    second.group->wait_for_members(3, soon());
    second.step();
  });
  founder.group->wait_for_members(2, soon());
  founder.step();
  // The founder's memory goes bad between two steps.
  const double right = founder.value;
  founder.value = 1e9;
  Thread b([&] {
    third.group = ElasticGroup::join(third.options(), {founder.group->endpoint()});
    EXPECT_EQ(third.value, right);
    third.step();
  });
  founder.group->wait_for_members(3, soon());
  founder.value = right;
  founder.step();
  a.join();
  b.join();
  EXPECT_EQ(a.error, "");
  EXPECT_EQ(b.error, "");
  EXPECT_EQ(third.value, right + 6);
  EXPECT_THAT(third.faults, testing::Contains(HasSubstr("member " + founder.group->self().text() +
                                                        " has sent a state with digest")));
}

TEST(ElasticGroup, SendsAJoinerAwayWhereNobodyHasTheRightState) {
  Member founder;
  founder.group = ElasticGroup::found(founder.options());
  founder.step();
  const double right = founder.value;
  founder.value = 1e9;
  Member second;
  Thread other(
      [&] { second.group = ElasticGroup::join(second.options(), {founder.group->endpoint()}); });
  // The founder meets the joiner as often as it comes, until that one has given up.
  for (const Deadline end = soon(); !other.ended && !end.passed();) {
    try {
      founder.group->wait_for_members(2, Deadline::in(std::chrono::seconds(3)));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
    }
  }
  ASSERT_TRUE(other.ended);
  other.join();
  EXPECT_THAT(other.error, HasSubstr("no member of the view"));
  EXPECT_THAT(other.error, HasSubstr(founder.group->self().text()));
  founder.value = right;
  founder.step();
  EXPECT_EQ(founder.value, right + 1);
}

}  // namespace
}  // namespace shoal::collective::elastic::elastic_group_test
