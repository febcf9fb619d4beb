// What members do in a few situations, each written as a script: who goes on, who ends, and how
// soon. Letters take 1 to 41 ms here, and none is lost unless a test says so.
#include "shoal/collective/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tests/collective/membership/simulation.h"
#include "tests/error_text.h"

namespace shoal::collective::membership_test {
namespace {

using namespace membership;
using testing::HasSubstr;

/// Why a member has ended; empty while it has not.
std::string end_of(const Simulation& simulation, std::size_t node) {
  const std::optional<Error>& ended = simulation.member(node).ended();
  return ended ? ended->what() : "";
}

TEST(Membership, StepsGoOnWhileNothingHappens) {
  Simulation simulation(1, calm(5));
  EXPECT_EQ(simulation.run_until(seconds(10)), std::nullopt);
  for (std::size_t node = 0; node < 5; ++node) {
    expect_view(simulation, node, {1, 2, 3, 4, 5}, 1);
    EXPECT_GT(simulation.committed_by(node), 20u);
  }
}

// A commit is one round from the owner to the keepers and back, after the last report.
TEST(Membership, ACommitTakesTwoWaysToTheOwnerAndBackAndOneRoundToTheKeepers) {
  Membership owner(id_of(1), first_view(3), {}, Clock::time_point(seconds(1)));
  Membership other(id_of(2), first_view(3), {}, Clock::time_point(seconds(1)));
  const auto now = Clock::time_point(seconds(1));
  const auto report = [&](std::uint64_t member) {
    return Received{Letter{.from = id_of(member),
                           .to = id_of(1),
                           .lineage = 1,
                           .epoch = 1,
                           .body = Report{.step = 0, .state = {}, .samples = 4}}};
  };
  EXPECT_TRUE(owner.on(StepReady{1, 0, {}, 4}, now).empty());
  EXPECT_TRUE(owner.on(report(2), now).empty());
  const std::vector<Letter> proposals = owner.on(report(3), now);
  ASSERT_EQ(proposals.size(), 2u);
  const std::vector<Letter> votes = other.on(Received{proposals[0]}, now);
  ASSERT_EQ(votes.size(), 1u);
  EXPECT_EQ(owner.place().step, 0u) << "only the owner itself has accepted";
  const std::vector<Letter> decisions = owner.on(Received{votes[0]}, now);
  EXPECT_EQ(decisions.size(), 2u);
  EXPECT_EQ(owner.place().step, 1u);
  EXPECT_EQ(owner.place().samples, 12u);
}

TEST(Membership, TheOthersGoOnSoonAfterTheOwnerCrashes) {
  Simulation simulation(2, calm(5));
  simulation.at(seconds(5), [&] { simulation.crash(0); });
  EXPECT_EQ(simulation.run_until(seconds(10)), std::nullopt);
  for (std::size_t node = 1; node < 5; ++node) {
    expect_view(simulation, node, {2, 3, 4, 5}, 2);
    // Two seconds of silence make a suspicion.
    EXPECT_LT(simulation.entered(node), seconds(8));
    EXPECT_GT(simulation.committed_at(node), simulation.entered(node));
  }
}

// Two beats are missed then, and not four.
TEST(Membership, TheOthersGoOnSoonerWhereNobodyListensAnyMore) {
  Simulation simulation(2, calm(5));
  simulation.at(seconds(5), [&] { simulation.crash_and_tell(0); });
  EXPECT_EQ(simulation.run_until(seconds(10)), std::nullopt);
  for (std::size_t node = 1; node < 5; ++node) {
    expect_view(simulation, node, {2, 3, 4, 5}, 2);
    EXPECT_LT(simulation.entered(node), milliseconds(6700));
  }
}

// It may also say so of one that lives.
TEST(Membership, WhoIsHeardIsNotRemovedWhateverItsHostSays) {
  Simulation simulation(2, calm(5));
  for (int i = 0; i < 40; ++i)
    simulation.at(milliseconds(100 * i), [&] { simulation.tell_absent(3); });
  EXPECT_EQ(simulation.run_until(seconds(8)), std::nullopt);
  for (std::size_t node = 0; node < 5; ++node) expect_view(simulation, node, {1, 2, 3, 4, 5}, 1);
}

// Whatever the owner does at that moment: the others find out what it has decided.
TEST(Membership, TheOwnerMayCrashAtAnyPointOfAViewChange) {
  for (int point = 0; point < 120; ++point) {
    Simulation simulation(3, calm(4));
    simulation.at(milliseconds(2000), [&] { simulation.join(milliseconds(1)); });
    simulation.at(milliseconds(2000 + 7 * point), [&] { simulation.crash(0); });
    ASSERT_EQ(simulation.run_until(seconds(12)), std::nullopt) << point;
    for (std::size_t node = 1; node < 5; ++node) {
      ASSERT_EQ(simulation.member(node).view()->everybody(), ids({2, 3, 4, 5}))
          << point << simulation.describe();
      ASSERT_GT(simulation.committed_at(node), seconds(10)) << point << simulation.describe();
    }
  }
}

TEST(Membership, OfThreeAndTwoThatAreCutTheTwoStop) {
  Simulation simulation(4, calm(5));
  simulation.at(seconds(3), [&] { simulation.partition(0b11000); });
  EXPECT_EQ(simulation.run_until(seconds(12)), std::nullopt);
  for (std::size_t node = 0; node < 3; ++node) expect_view(simulation, node, {1, 2, 3}, 2);
  for (std::size_t node = 3; node < 5; ++node)
    EXPECT_THAT(end_of(simulation, node), HasSubstr("lost the majority of the keepers"));
}

// Four members have three keepers, so one of two halves goes on.
TEST(Membership, OfTwoAndTwoThoseWithTwoKeepersGoOn) {
  Simulation simulation(5, calm(4));
  simulation.at(seconds(3), [&] { simulation.partition(0b1001); });
  EXPECT_EQ(simulation.run_until(seconds(12)), std::nullopt);
  expect_view(simulation, 1, {2, 3}, 2);
  expect_view(simulation, 2, {2, 3}, 2);
  EXPECT_THAT(end_of(simulation, 0), HasSubstr("lost the majority"));
  EXPECT_THAT(end_of(simulation, 3), HasSubstr("lost the majority"));
}

TEST(Membership, OfTwoMembersTheOneWithTheWitnessGoesOn) {
  Simulation simulation(6, calm(2, 1, OnQuorumLoss::kWitness));
  simulation.at(seconds(3), [&] { simulation.partition(0b001); });
  EXPECT_EQ(simulation.run_until(seconds(12)), std::nullopt);
  EXPECT_THAT(end_of(simulation, 0), HasSubstr("lost the majority"));
  expect_view(simulation, 1, {2, 3}, 2);
  EXPECT_EQ(simulation.member(1).view()->keepers, ids({2}));
  EXPECT_GT(simulation.committed_at(1), seconds(11));
}

TEST(Membership, SurvivorsGoOnInALineageOfTheirOwnAndTheOneWithFewerSamplesEnds) {
  Simulation simulation(7, calm(5, 0, OnQuorumLoss::kSurvivors));
  simulation.at(seconds(3), [&] { simulation.partition(0b11000); });
  EXPECT_EQ(simulation.run_until(seconds(14)), std::nullopt);
  EXPECT_EQ(simulation.member(0).place().lineage, 1u);
  EXPECT_NE(simulation.member(3).place().lineage, 1u);
  EXPECT_EQ(simulation.member(3).place().lineage, simulation.member(4).place().lineage);
  expect_view(simulation, 3, {4, 5}, 2);
  EXPECT_GT(simulation.committed_at(3), simulation.entered(3));
  simulation.heal();
  EXPECT_EQ(simulation.run_until(seconds(20)), std::nullopt);
  // Three members commit more samples than two, and began earlier.
  for (std::size_t node = 0; node < 3; ++node) expect_view(simulation, node, {1, 2, 3}, 2);
  for (std::size_t node = 3; node < 5; ++node)
    EXPECT_THAT(end_of(simulation, node), HasSubstr("another lineage has committed"));
}

// What they have to say to each other goes by way of others.
TEST(Membership, ABrokenPairIsNoDeath) {
  Simulation simulation(8, calm(5));
  simulation.at(seconds(3), [&] { simulation.cut_both(0, 3); });
  EXPECT_EQ(simulation.run_until(seconds(15)), std::nullopt);
  for (std::size_t node = 0; node < 5; ++node) {
    expect_view(simulation, node, {1, 2, 3, 4, 5}, 1);
    EXPECT_GT(simulation.committed_at(node), seconds(14));
  }
}

TEST(Membership, AOneWayCutOfAPairIsNoDeath) {
  for (const bool from_the_owner : {false, true}) {
    Simulation simulation(9, calm(4));
    simulation.at(seconds(3),
                  [&] { from_the_owner ? simulation.cut(0, 2) : simulation.cut(2, 0); });
    EXPECT_EQ(simulation.run_until(seconds(15)), std::nullopt);
    for (std::size_t node = 0; node < 4; ++node) {
      expect_view(simulation, node, {1, 2, 3, 4}, 1);
      EXPECT_GT(simulation.committed_at(node), seconds(14)) << simulation.describe();
    }
  }
}

// One that hears nobody accuses everybody, and one that nobody hears is accused by all.
TEST(Membership, WhoHearsNobodyOrIsHeardByNobodyIsRemoved) {
  for (const bool is_deaf : {false, true}) {
    Simulation simulation(10, calm(4));
    simulation.at(seconds(3), [&] { is_deaf ? simulation.deafen(1) : simulation.mute(1); });
    EXPECT_EQ(simulation.run_until(seconds(8)), std::nullopt);
    for (const std::size_t node : {0u, 2u, 3u}) {
      expect_view(simulation, node, {1, 3, 4}, 2);
      EXPECT_LT(simulation.entered(node), seconds(7));
    }
    if (!is_deaf) {
      EXPECT_THAT(end_of(simulation, 1), HasSubstr("the others removed"));
    }
  }
}

// The majority hears each other, and the two accuse all of it until they end.
TEST(Membership, TwoThatHearNobodyDoNotStopTheMajority) {
  Simulation simulation(20, calm(5));
  simulation.at(seconds(3), [&] {
    simulation.deafen(3);
    simulation.deafen(4);
  });
  EXPECT_EQ(simulation.run_until(seconds(15)), std::nullopt);
  for (std::size_t node = 0; node < 3; ++node) {
    expect_view(simulation, node, {1, 2, 3}, 2);
    EXPECT_LT(simulation.entered(node), seconds(8));
    EXPECT_GT(simulation.committed_at(node), seconds(14));
  }
  for (std::size_t node = 3; node < 5; ++node)
    EXPECT_THAT(end_of(simulation, node), HasSubstr("lost the majority of the keepers"));
}

TEST(Membership, OfTwelveMembersThoseThatAreNoKeepersAreMissedToo) {
  Simulation simulation(18, calm(12));
  simulation.at(seconds(3), [&] {
    simulation.crash(7);
    simulation.crash(11);
  });
  EXPECT_EQ(simulation.run_until(seconds(8)), std::nullopt);
  for (const std::size_t node : {0u, 4u, 10u}) {
    expect_view(simulation, node, {1, 2, 3, 4, 5, 6, 7, 9, 10, 11}, 2);
    EXPECT_LT(simulation.entered(node), seconds(6));
  }
}

TEST(Membership, AJoinerThatIsReadyComesInBetweenStepsAndKeepsOnceItHasTakenPart) {
  Simulation simulation(11, calm(2));
  std::size_t joiner = 0;
  simulation.at(seconds(2), [&] { joiner = simulation.join(seconds(1)); });
  EXPECT_EQ(simulation.run_until(milliseconds(2900)), std::nullopt);
  EXPECT_FALSE(simulation.member(joiner).view());
  expect_view(simulation, 0, {1, 2}, 1);
  EXPECT_EQ(simulation.run_until(seconds(8)), std::nullopt);
  // The view of epoch 2 has the joiner, that of epoch 3 three keepers.
  for (std::size_t node = 0; node < 3; ++node) {
    expect_view(simulation, node, {1, 2, 3}, 3);
    EXPECT_EQ(simulation.member(node).view()->keepers.size(), 3u);
  }
}

TEST(Membership, WhoWantsToLeaveLeaves) {
  for (const std::size_t leaver : {0u, 2u}) {
    Simulation simulation(12, calm(3));
    simulation.at(seconds(2), [&] { simulation.leave(leaver); });
    EXPECT_EQ(simulation.run_until(seconds(5)), std::nullopt);
    EXPECT_TRUE(simulation.member(leaver).has_left()) << simulation.describe();
    EXPECT_FALSE(simulation.member(leaver).ended());
    EXPECT_LT(simulation.entered(1), milliseconds(3500));
  }
  Simulation simulation(13, calm(3));
  simulation.at(seconds(2), [&] {
    for (std::size_t node = 0; node < 3; ++node) simulation.leave(node);
  });
  EXPECT_EQ(simulation.run_until(seconds(10)), std::nullopt);
  for (std::size_t node = 0; node < 3; ++node)
    EXPECT_TRUE(simulation.member(node).has_left()) << simulation.describe();
}

TEST(Membership, TheLastMemberLeavesItsWitness) {
  Simulation simulation(21, calm(1, 1, OnQuorumLoss::kWitness));
  simulation.at(seconds(2), [&] { simulation.leave(0); });
  EXPECT_EQ(simulation.run_until(seconds(4)), std::nullopt);
  EXPECT_TRUE(simulation.member(0).has_left()) << simulation.describe();
  expect_view(simulation, 0, {1, 2}, 1);
}

// The only member leaves, and the letter that says that its heir's view begins is lost.
TEST(Membership, AJoinerThatInheritsEverythingBeginsByItself) {
  auto now = Clock::time_point(seconds(1));
  Membership leaver(id_of(1), first_view(1), {}, now);
  Membership heir = Membership::joiner(member_of(2), {id_of(1)}, {}, now);
  heir.on(JoinerReady{}, now);
  for (int tick = 0; tick < 30; ++tick) {
    now += milliseconds(100);
    if (tick == 1) leaver.on(LeaveAsked{}, now);
    std::vector<Letter> letters = leaver.on(Tick{}, now);
    for (Letter& letter : heir.on(Tick{}, now)) letters.push_back(std::move(letter));
    while (!letters.empty()) {
      const Letter letter = letters.back();
      letters.pop_back();
      if (std::holds_alternative<Start>(letter.body)) continue;
      Membership& to = letter.to == id_of(1) ? leaver : heir;
      for (Letter& answer : to.on(Received{letter}, now)) letters.push_back(std::move(answer));
    }
  }
  EXPECT_TRUE(leaver.has_left());
  ASSERT_TRUE(heir.view());
  EXPECT_EQ(heir.view()->everybody(), ids({2}));
}

TEST(Membership, AJoinerKeepsTheNewestViewThatItHolds) {
  const auto now = Clock::time_point(seconds(1));
  Membership joiner = Membership::joiner(member_of(2), {id_of(1)}, {}, now);
  View view = first_view(2);
  view.keepers = ids({2});
  for (const std::uint64_t epoch : {2u, 3u, 2u}) {
    view.epoch = epoch;
    joiner.on(Received{Letter{.from = id_of(1), .to = id_of(2), .body = Hold{view}}}, now);
  }
  EXPECT_EQ(joiner.held()->epoch, 3u);
}

TEST(Membership, AWitnessThatDiesKeepsNobodyFromJoining) {
  Simulation simulation(22, calm(3, 1));
  simulation.at(seconds(2), [&] { simulation.crash(3); });
  simulation.at(seconds(6), [&] { simulation.join(milliseconds(100)); });
  EXPECT_EQ(simulation.run_until(seconds(12)), std::nullopt);
  EXPECT_EQ(simulation.member(0).view()->everybody(), ids({1, 2, 3, 5})) << simulation.describe();
}

TEST(Membership, AnOddStateAbortsTheStepAndItsMemberIsRemoved) {
  Simulation simulation(14, calm(3));
  simulation.at(seconds(2), [&] { simulation.be_odd(1); });
  EXPECT_EQ(simulation.run_until(seconds(6)), std::nullopt);
  expect_view(simulation, 0, {1, 3}, 2);
  EXPECT_THAT(end_of(simulation, 1), HasSubstr("the others removed"));
  // Of two that differ nobody knows which one is odd: both repeat the step.
  Simulation pair(15, calm(2));
  pair.at(seconds(2), [&] { pair.be_odd(1); });
  EXPECT_EQ(pair.run_until(seconds(6)), std::nullopt);
  expect_view(pair, 0, {1, 2}, 2);
  EXPECT_GT(pair.committed_at(1), seconds(5));
}

// Three joiners with one wrong state are more than two members, and are the odd ones all the same.
TEST(Membership, JoinersDoNotOutvoteMembers) {
  Simulation simulation(19, calm(2));
  simulation.at(seconds(2), [&] {
    for (int i = 0; i < 3; ++i) simulation.be_odd(simulation.join(milliseconds(100)));
  });
  EXPECT_EQ(simulation.run_until(seconds(8)), std::nullopt);
  for (std::size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(simulation.member(node).view()->everybody(), ids({1, 2})) << simulation.describe();
    EXPECT_GT(simulation.committed_at(node), seconds(7));
  }
  for (std::size_t node = 2; node < 5; ++node)
    EXPECT_THAT(end_of(simulation, node), HasSubstr("the others removed"));
}

TEST(Membership, AStepThatFailsIsAttemptedAgain) {
  Simulation simulation(16, calm(3));
  simulation.at(seconds(2), [&] { simulation.fail_once(2); });
  EXPECT_EQ(simulation.run_until(seconds(6)), std::nullopt);
  for (std::size_t node = 0; node < 3; ++node) {
    expect_view(simulation, node, {1, 2, 3}, 2);
    EXPECT_GT(simulation.committed_at(node), seconds(5));
  }
}

TEST(Membership, WhoStandsStillForLongIsRemovedAndWhoDoesNotForLongIsNot) {
  for (const bool is_long : {false, true}) {
    Simulation simulation(17, calm(4));
    simulation.at(seconds(2), [&] { simulation.pause(3, milliseconds(is_long ? 5000 : 1200)); });
    EXPECT_EQ(simulation.run_until(seconds(10)), std::nullopt);
    EXPECT_EQ(simulation.member(0).view()->members.size(), is_long ? 3u : 4u);
    EXPECT_EQ(simulation.member(3).ended().has_value(), is_long);
  }
}

constexpr Settings kSurvivorsGoOn = {.quorum_patience = seconds(4),
                                     .on_quorum_loss = OnQuorumLoss::kSurvivors};

Received letter_to(const Membership& member, std::uint64_t from, Body body) {
  return Received{Letter{
      .from = id_of(from), .to = member.self(), .lineage = 1, .epoch = 1, .body = std::move(body)}};
}

/// Lets a member run for a while in which it hears these; returns the asks for a fork that it
/// sends.
std::vector<ForkAsk> run(Membership& member, Clock::time_point& now, Duration duration,
                         const std::vector<std::uint64_t>& heard) {
  std::vector<ForkAsk> asks;
  for (const auto end = now + duration; now < end;) {
    now += milliseconds(100);
    for (const std::uint64_t other : heard)
      member.on(letter_to(member, other, Beat{.place = member.place(), .accused = {}}), now);
    for (const Letter& letter : member.on(Tick{}, now))
      if (const auto* ask = std::get_if<ForkAsk>(&letter.body)) asks.push_back(*ask);
  }
  return asks;
}

TEST(Membership, NoForkIsAskedForTwiceUnderOneBallot) {
  auto now = Clock::time_point(seconds(1));
  Membership member(id_of(1), first_view(5), kSurvivorsGoOn, now);
  const std::vector<ForkAsk> first = run(member, now, seconds(7), {2});
  EXPECT_TRUE(run(member, now, seconds(1), {2, 3, 4, 5}).empty());
  const std::vector<ForkAsk> second = run(member, now, seconds(7), {2});
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_LT(first[0].ballot, second[0].ballot);
}

TEST(Membership, WhoHasPromisedAForkCommitsNoStepUntilTheMajorityIsBack) {
  auto now = Clock::time_point(seconds(1));
  Membership member(id_of(2), first_view(5), kSurvivorsGoOn, now);
  member.on(StepReady{1, 0, {}, 4}, now);
  run(member, now, seconds(5), {1});
  const ForkAsk ask{.ballot = {1, id_of(3)}, .survivors = ids({2, 3})};
  const std::vector<Letter> answers = member.on(letter_to(member, 3, ask), now);
  ASSERT_FALSE(answers.empty());
  ASSERT_TRUE(std::holds_alternative<ForkPromise>(answers[0].body));
  EXPECT_EQ(std::get<ForkPromise>(answers[0].body).place.step, 0u);
  const Decided decided{Outcome{.step = 0, .samples = 20, .cause = {}, .odd = {}}};
  member.on(letter_to(member, 1, decided), now);
  EXPECT_EQ(member.place().step, 0u);
  run(member, now, seconds(1), {1, 3, 4, 5});
  member.on(letter_to(member, 1, decided), now);
  EXPECT_EQ(member.place().step, 1u);
}

TEST(Membership, AForkThatDoesNotBeginLeavesTheNextViewOfTheOldLineage) {
  auto now = Clock::time_point(seconds(1));
  Membership member(id_of(2), first_view(5), kSurvivorsGoOn, now);
  run(member, now, seconds(5), {1});
  const ForkAsk ask{.ballot = {1, id_of(3)}, .survivors = ids({2, 3})};
  member.on(letter_to(member, 3, ask), now);
  View next = first_view(4);
  next.epoch = 2;
  next.parent = digest(first_view(5));
  member.on(letter_to(member, 1, Hold{next}), now);
  View fork = next;
  fork.lineage = 77;
  fork.members = members_of(2, 2);
  fork.keepers = ids({2});
  member.on(letter_to(member, 3, Hold{fork}), now);
  ASSERT_TRUE(member.held());
  EXPECT_EQ(*member.held(), next);
  EXPECT_EQ(member.fork_held(), fork);
  run(member, now, seconds(1), {1, 3, 4, 5});
  EXPECT_FALSE(member.fork_held());
}

TEST(Membership, WhoWasRemovedDoesNotComeBackUnderItsId) {
  const auto now = Clock::time_point(seconds(1));
  View view = first_view(1);
  view.removed = members_of(9, 1);
  Membership keeper(id_of(1), view, {}, now);
  Membership removed = Membership::joiner(member_of(9), {id_of(1)}, {}, now);
  removed.on(JoinerReady{}, now);
  const Join join{.who = member_of(9), .ready = true};
  const std::vector<Letter> answers = keeper.on(letter_to(keeper, 9, join), now);
  ASSERT_EQ(answers.size(), 1u);
  removed.on(Received{answers[0]}, now);
  ASSERT_TRUE(removed.ended());
  EXPECT_THAT(removed.ended()->what(), HasSubstr("the others have removed 09000000"));
  keeper.on(Tick{}, now + milliseconds(100));
  EXPECT_EQ(keeper.view()->everybody(), ids({1}));
}

// Members of one epoch may be numbered as those of another: the letter says which view it means.
TEST(Membership, LettersOfAnotherEpochOrLineageAreNoVotes) {
  const auto now = Clock::time_point(seconds(1));
  for (const bool other_lineage : {false, true}) {
    View second = first_view(3);
    second.epoch = 2;
    Membership keeper(id_of(2), second, {}, now);
    const Letter late{.from = id_of(1),
                      .to = id_of(2),
                      .lineage = other_lineage ? 9u : 1u,
                      .epoch = other_lineage ? 2u : 1u,
                      .body = AcceptStep{.ballot = {0, id_of(1)}, .outcome = {}}};
    for (const Letter& answer : keeper.on(Received{late}, now))
      EXPECT_FALSE(std::holds_alternative<AcceptedStep>(answer.body));
    EXPECT_FALSE(keeper.keeper()->step());
  }
}

TEST(Membership, AJoinerOfAnotherWidthOrMeshIsToldSo) {
  const auto now = Clock::time_point(seconds(1));
  const auto refusal = [&](const Member& who) -> std::string {
    Membership keeper(id_of(1), first_view(1), {}, now);
    Membership joiner = Membership::joiner(who, {id_of(1)}, {}, now);
    joiner.on(JoinerReady{}, now);
    const std::vector<Letter> asked = joiner.on(Tick{}, now);
    const std::vector<Letter> answer = keeper.on(Received{asked.at(0)}, now);
    if (!answer.empty()) joiner.on(Received{answer[0]}, now);
    return joiner.ended() ? joiner.ended()->what() : "it is let in";
  };
  Member wide = member_of(2);
  wide.width = 4;
  wide.mesh = "dp 2, tp 2";
  EXPECT_THAT(refusal(wide), HasSubstr("a member of 4 ranks (dp 2, tp 2) and protocol 1 cannot "
                                       "join members of 1 rank and protocol 1"));
  Member divided = member_of(2);
  divided.mesh = "zero 3";
  EXPECT_THAT(refusal(divided), HasSubstr("a member of 1 rank (zero 3) and protocol 1 cannot"));
  EXPECT_EQ(refusal(member_of(2)), "it is let in");
}

TEST(Membership, WrongBeginningsAreRefused) {
  const auto now = Clock::time_point(seconds(1));
  EXPECT_THAT(error_text([&] { Membership(id_of(9), first_view(2), {}, now); }),
              HasSubstr("09000000 is not in the first view [01000000, 02000000]"));
  EXPECT_THAT(error_text([&] { Membership(id_of(1), first_view(2), {.beat = {}}, now); }),
              HasSubstr("is not above zero"));
  EXPECT_THAT(
      error_text([&] { Membership(id_of(1), first_view(2), {.suspect_after = seconds(0)}, now); }),
      HasSubstr("suspect_after (0 ms) must be longer than a beat (500 ms)"));
  View many = first_view(2);
  many.members[1].endpoints.resize(17);
  EXPECT_THAT(error_text([&] { Membership(id_of(1), many, {}, now); }),
              HasSubstr("has 17 endpoints, at most 16 are allowed"));
}

}  // namespace
}  // namespace shoal::collective::membership_test
