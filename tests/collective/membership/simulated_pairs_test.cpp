// Two members that do not hear each other, while the others hear both: no step is computed without
// both, so one of them must go. Scripts say which one and when; and in thousands of schedules, with
// all other faults, pairs are cut for good, and those that are left must commit steps again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <optional>
#include <string>

#include "tests/collective/membership/simulation.h"
#include "tests/sanitized.h"

namespace shoal::collective::simulated_pairs_test {
namespace {

using namespace membership;
using testing::AllOf;
using testing::HasSubstr;

/// Silence is noticed, the pair is waited for, and a beat later the next view is decided.
constexpr Duration kParted = seconds(2) + Simulation::kPatience + milliseconds(1000);

Scenario linked(std::uint64_t members, std::uint64_t witnesses = 0) {
  Scenario scenario = calm(members, witnesses);
  scenario.attempts_need_links = true;
  return scenario;
}

std::string end_of(const Simulation& simulation, std::size_t node) {
  const std::optional<Error>& ended = simulation.member(node).ended();
  return ended ? ended->what() : "";
}

/// Cuts two at second 3, in one direction or both: the second one goes, and the others go on.
void expect_second_to_go(Scenario scenario, std::size_t stays, std::size_t goes) {
  for (int ways = 1; ways <= 3; ++ways) {
    Simulation simulation(30 + static_cast<std::uint64_t>(ways), scenario);
    simulation.at(seconds(3), [&] {
      if ((ways & 1) != 0) simulation.cut_for_good(stays, goes);
      if ((ways & 2) != 0) simulation.cut_for_good(goes, stays);
    });
    ASSERT_EQ(simulation.run_until(seconds(16)), std::nullopt) << ways;
    EXPECT_THAT(end_of(simulation, goes),
                AllOf(HasSubstr("the others removed " + id_of(goes + 1).text()),
                      HasSubstr("it and [" + id_of(stays + 1).text() + "] did not hear each other"),
                      HasSubstr("must reach each other"), HasSubstr("it may join again")))
        << ways << simulation.describe();
    for (std::size_t node = 0; node < scenario.members; ++node) {
      if (node == goes) continue;
      const auto& view = simulation.member(node).view();
      EXPECT_EQ(view->members.size(), scenario.members - 1) << ways << simulation.describe();
      EXPECT_EQ(view->epoch, 2u) << ways << simulation.describe();
      EXPECT_GT(simulation.entered(node), seconds(3) + Simulation::kPatience) << ways;
      EXPECT_LT(simulation.entered(node), seconds(3) + kParted) << ways;
      EXPECT_GT(simulation.committed_at(node), seconds(15)) << ways << simulation.describe();
    }
  }
}

TEST(SimulatedPairs, TheLaterOneOfAPairIsRemovedAndToldWhy) {
  expect_second_to_go(linked(5), 1, 3);
  expect_second_to_go(linked(3), 1, 2);
}

TEST(SimulatedPairs, TheOwnerOfAPairStays) {
  expect_second_to_go(linked(4), 0, 2);
  expect_second_to_go(linked(3), 0, 1);
}

TEST(SimulatedPairs, AWitnessThatHearsBothOfTwoMembersRemovesOne) {
  expect_second_to_go(linked(2, 1), 0, 1);
}

TEST(SimulatedPairs, ThoseThatKeepNothingAreRemovedToo) { expect_second_to_go(linked(12), 6, 11); }

TEST(SimulatedPairs, WithAnEtcdToo) {
  Scenario scenario = linked(4);
  scenario.has_chain = true;
  expect_second_to_go(scenario, 0, 2);
  expect_second_to_go(scenario, 1, 3);
}

// Member 1 hears 2 no more, and 3 hears 1 no more: neither is gone, and one is enough.
TEST(SimulatedPairs, OneThatLacksTwoConnectionsGoesThoughItIsTheOwner) {
  Simulation simulation(1, linked(5));
  simulation.at(seconds(3), [&] {
    simulation.cut_for_good(1, 0);
    simulation.cut_for_good(0, 2);
  });
  EXPECT_EQ(simulation.run_until(seconds(16)), std::nullopt);
  for (const std::size_t node : {1u, 2u, 3u, 4u}) {
    expect_view(simulation, node, {2, 3, 4, 5}, 2);
    EXPECT_GT(simulation.committed_at(node), seconds(15)) << simulation.describe();
  }
}

// Attempts fail before the pair is waited for long enough, one view after the other.
TEST(SimulatedPairs, AttemptsThatFailHideNoPair) {
  for (const int timeout : {2500, 3500, 4500}) {
    Scenario scenario = linked(4);
    scenario.links_timeout = milliseconds(timeout);
    Simulation simulation(2, scenario);
    simulation.at(seconds(3), [&] { simulation.cut_both(1, 2); });
    EXPECT_EQ(simulation.run_until(seconds(20)), std::nullopt);
    for (const std::size_t node : {0u, 1u, 3u}) {
      EXPECT_EQ(simulation.member(node).view()->everybody(), ids({1, 2, 4}))
          << timeout << simulation.describe();
      EXPECT_GT(simulation.committed_at(node), seconds(19)) << timeout << simulation.describe();
    }
  }
}

TEST(SimulatedPairs, WhoHearEachOtherAgainJustBeforeBothStay) {
  for (int point = 0; point < 40; ++point) {
    Simulation simulation(40, linked(4));
    simulation.at(seconds(3), [&] { simulation.cut_both(0, 2); });
    simulation.at(seconds(5) + Simulation::kPatience - milliseconds(25 * point),
                  [&] { simulation.heal(); });
    ASSERT_EQ(simulation.run_until(seconds(14)), std::nullopt) << point;
    for (std::size_t node = 0; node < 4; ++node) {
      EXPECT_GT(simulation.committed_at(node), seconds(13)) << point << simulation.describe();
      EXPECT_EQ(simulation.member(node).view()->members.size(), 4u) << point;
    }
  }
}

// Whatever is decided at that moment, all that are left agree, and go on.
TEST(SimulatedPairs, TheyMayHearEachOtherAgainAtAnyPointOfTheRemoval) {
  for (int point = 0; point < 120; ++point) {
    Simulation simulation(41, linked(4));
    simulation.at(seconds(3), [&] { simulation.cut_both(0, 2); });
    simulation.at(seconds(5) + Simulation::kPatience + milliseconds(10 * point),
                  [&] { simulation.heal(); });
    ASSERT_EQ(simulation.run_until(seconds(14)), std::nullopt) << point;
    for (const std::size_t node : {0u, 1u, 3u})
      EXPECT_GT(simulation.committed_at(node), seconds(13)) << point << simulation.describe();
    const bool stays = !simulation.member(2).ended();
    EXPECT_EQ(simulation.member(0).view()->members.size(), stays ? 4u : 3u) << point;
  }
}

// Letters are late and members stand still, for less than what is taken for silence, while steps
// take longer than a pair is waited for: nobody is removed.
TEST(SimulatedPairs, ABusyNetworkPartsNobody) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Scenario scenario = linked(5);
    scenario.late = 0.3;
    scenario.attempt_takes = seconds(6);
    Simulation simulation(seed, scenario);
    for (int i = 0; i < 10; ++i) {
      simulation.at(milliseconds(1500 * i), [&simulation, seed, i] {
        simulation.pause((seed + static_cast<std::uint64_t>(i)) % 5, milliseconds(400));
      });
    }
    ASSERT_EQ(simulation.run_until(seconds(40)), std::nullopt) << seed;
    for (std::size_t node = 0; node < 5; ++node) {
      expect_view(simulation, node, {1, 2, 3, 4, 5}, 1);
      EXPECT_GE(simulation.committed_by(node), 4u) << seed;
    }
  }
}

constexpr std::uint64_t kSchedules = kSanitized ? 200 : 2'000;

Scenario scenario_of(std::uint64_t seed) {
  Scenario scenario;
  scenario.members = 2 + seed % 5;
  scenario.witnesses = seed % 4 == 0 ? 1 : 0;
  scenario.has_chain = seed % 3 == 0;
  scenario.attempts_need_links = true;
  if (seed % 2 == 0) scenario.links_timeout = milliseconds(3500 + 250 * (seed % 9));
  return scenario;
}

void cut_pairs(Simulation& simulation, std::uint64_t seed) {
  const std::uint64_t pairs = 1 + seed % 7 / 5;
  for (std::uint64_t i = 0; i < pairs; ++i) {
    const auto when = milliseconds(seed * 37 % 8000 + i * 500);
    simulation.at(when, [&simulation] { simulation.cut_a_pair_for_good(); });
  }
  simulation.make_faults();
}

TEST(SimulatedPairs, InEachScheduleThoseThatAreLeftCommitAgain) {
  std::uint64_t commits = 0;
  std::uint64_t ended = 0;
  std::uint64_t had_to_go_on = 0;
  for (std::uint64_t seed = 1; seed <= kSchedules; ++seed) {
    Simulation simulation(seed, scenario_of(seed));
    cut_pairs(simulation, seed);
    const std::optional<std::string> violation = simulation.run();
    ASSERT_FALSE(violation) << "seed " << seed << ": " << *violation << simulation.describe();
    commits += simulation.check().commits();
    ended += simulation.all_have_ended();
    had_to_go_on += simulation.had_to_go_on();
  }
  std::cout << kSchedules << " schedules, " << commits << " steps committed; in " << ended
            << " everybody ended, in " << had_to_go_on << " somebody had to go on\n";
  EXPECT_GT(commits, 5 * kSchedules);
  EXPECT_GT(had_to_go_on, kSchedules / 3);
  EXPECT_LT(ended, kSchedules / 2);
}

// Two lineages may never meet there, but they must not contradict themselves.
TEST(SimulatedPairs, SurvivorsAgreeToo) {
  for (std::uint64_t seed = 1; seed <= kSchedules / 4; ++seed) {
    Scenario scenario = scenario_of(seed);
    scenario.has_chain = false;
    scenario.on_quorum_loss = OnQuorumLoss::kSurvivors;
    Simulation simulation(seed, scenario);
    cut_pairs(simulation, seed);
    std::optional<std::string> violation = simulation.run();
    if (violation && violation->find("no progress") == 0) violation.reset();
    ASSERT_FALSE(violation) << "seed " << seed << ": " << *violation << simulation.describe();
  }
}

TEST(SimulatedPairs, WithoutTheRuleTheyStandStill) {
  std::uint64_t stood_still = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Scenario scenario = scenario_of(seed);
    scenario.rules.parts_broken_pairs = false;
    Simulation simulation(seed, scenario);
    cut_pairs(simulation, seed);
    const std::optional<std::string> violation = simulation.run();
    stood_still += violation && violation->find("no progress") == 0;
  }
  EXPECT_GT(stood_still, 5u);
}

}  // namespace
}  // namespace shoal::collective::simulated_pairs_test
