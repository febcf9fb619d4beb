// Schedules in which a keeper outside of the group holds what is decided: it is stopped, cut from
// some members, and its answers are lost, beside everything else that happens to the members. They
// must agree, and go on once the faults have ended; and the simulator must notice what goes wrong
// where the keeper does not compare before it creates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "tests/collective/membership/simulation.h"
#include "tests/sanitized.h"

namespace shoal::collective::simulated_chain_test {
namespace {

using namespace membership;

constexpr std::uint64_t kSchedules = kSanitized ? 500 : 5'000;

Scenario scenario_of(std::uint64_t seed) {
  Scenario scenario;
  scenario.has_chain = true;
  scenario.members = 1 + seed % 7;
  scenario.witnesses = seed % 5 == 0 ? 1 : 0;
  scenario.as_bytes = seed % 16 == 0;
  scenario.most_faults = 6;
  return scenario;
}

TEST(SimulatedChain, MembersAgreeAndGoOnWhateverHappensToTheKeeper) {
  std::uint64_t commits = 0;
  std::uint64_t views = 0;
  std::uint64_t joined = 0;
  std::uint64_t ended = 0;
  std::uint64_t had_to_go_on = 0;
  std::size_t most_entries = 0;
  for (std::uint64_t seed = 1; seed <= kSchedules; ++seed) {
    Simulation simulation(seed, scenario_of(seed));
    simulation.make_faults();
    const std::optional<std::string> violation = simulation.run();
    ASSERT_FALSE(violation) << "seed " << seed << ": " << *violation << simulation.describe();
    commits += simulation.check().commits();
    views += simulation.check().views();
    joined += simulation.joined();
    ended += simulation.all_have_ended();
    had_to_go_on += simulation.had_to_go_on();
    most_entries = std::max(most_entries, simulation.keeper()->entries());
    ASSERT_EQ(simulation.check().lineages(), 1) << "seed " << seed;
  }
  std::cout << kSchedules << " schedules, " << commits << " steps committed, " << views
            << " views, " << joined << " joiners; in " << ended << " everybody ended, in "
            << had_to_go_on << " somebody had to go on; at most " << most_entries
            << " entries were kept\n";
  EXPECT_GT(commits, 5 * kSchedules);
  EXPECT_GT(views, kSchedules + kSchedules / 5);
  EXPECT_GT(joined, kSchedules / 20);
  EXPECT_GT(had_to_go_on, kSchedules / 2);
  EXPECT_LT(ended, kSchedules / 3);
}

// Four of five keepers are gone at once: with registers the last one could not go on.
TEST(SimulatedChain, OneOfFiveGoesOnWhereItReachesTheKeeper) {
  Scenario scenario = calm(5);
  scenario.has_chain = true;
  Simulation simulation(1, scenario);
  simulation.at(seconds(1), [&] {
    for (std::size_t node = 0; node < 4; ++node) simulation.crash(node);
  });
  EXPECT_EQ(simulation.run(), std::nullopt);
  expect_view(simulation, 4, {5}, 2);
  EXPECT_GT(simulation.committed_by(4), 10);
}

// Members beyond the five keepers may ask as well.
TEST(SimulatedChain, ThoseThatKeepNothingGoOnWithoutTheKeepers) {
  Scenario scenario = calm(7);
  scenario.has_chain = true;
  Simulation simulation(1, scenario);
  simulation.at(seconds(1), [&] {
    for (std::size_t node = 0; node < 5; ++node) simulation.crash(node);
  });
  EXPECT_EQ(simulation.run(), std::nullopt);
  for (const std::size_t node : {5u, 6u}) expect_view(simulation, node, {6, 7}, 2);
}

// Both sides of 3|2 reach the keeper: one lineage goes on, that of the larger side, and whoever is
// not in it ends.
TEST(SimulatedChain, OfTwoSidesTheLargerOneGoesOn) {
  Scenario scenario = calm(5);
  scenario.has_chain = true;
  Simulation simulation(1, scenario);
  simulation.at(seconds(1), [&] { simulation.partition(0b00011); });
  EXPECT_EQ(simulation.run_until(seconds(12)), std::nullopt);
  for (const std::size_t node : {2u, 3u, 4u}) expect_view(simulation, node, {3, 4, 5}, 2);
  for (const std::size_t node : {0u, 1u}) {
    ASSERT_TRUE(simulation.member(node).ended());
    EXPECT_NE(std::string(simulation.member(node).ended()->what()).find("removed"),
              std::string::npos);
  }
}

// A member that is alone with the keeper removes nobody from those that hear each other.
TEST(SimulatedChain, WhoHearsNobodyRemovesNobody) {
  Scenario scenario = calm(4);
  scenario.has_chain = true;
  Simulation simulation(1, scenario);
  simulation.at(seconds(1), [&] { simulation.deafen(0); });
  EXPECT_EQ(simulation.run_until(seconds(12)), std::nullopt);
  EXPECT_TRUE(simulation.member(0).ended());
  for (const std::size_t node : {1u, 2u, 3u}) expect_view(simulation, node, {2, 3, 4}, 2);
}

// Nothing is decided meanwhile, and nobody ends before its patience.
TEST(SimulatedChain, MembersHoldWhileTheKeeperIsAway) {
  Scenario scenario = calm(3);
  scenario.has_chain = true;
  Simulation simulation(1, scenario);
  simulation.at(seconds(1), [&] { simulation.stop_keeper(milliseconds(3500)); });
  EXPECT_EQ(simulation.run_until(milliseconds(1200)), std::nullopt);
  const std::uint64_t before = simulation.committed_by(1);
  EXPECT_EQ(simulation.run_until(milliseconds(4400)), std::nullopt);
  EXPECT_LE(simulation.committed_by(1), before + 1);
  EXPECT_EQ(simulation.run_until(seconds(8)), std::nullopt);
  EXPECT_GT(simulation.committed_by(1), before + 10);
  for (const std::size_t node : {0u, 1u, 2u}) expect_view(simulation, node, {1, 2, 3}, 1);
}

TEST(SimulatedChain, AKeeperThatStaysAwayIsNamedByAllInTheEnd) {
  Scenario scenario = calm(3);
  scenario.has_chain = true;
  Simulation simulation(1, scenario);
  simulation.at(seconds(1), [&] { simulation.stop_keeper(seconds(100)); });
  EXPECT_EQ(simulation.run_until(seconds(20)), std::nullopt);
  for (const std::size_t node : {0u, 1u, 2u}) {
    ASSERT_TRUE(simulation.member(node).ended());
    const std::string what = simulation.member(node).ended()->what();
    EXPECT_NE(what.find("the keeper outside has not answered for 4 s"), std::string::npos) << what;
  }
}

// A run of many steps in many views leaves few entries behind.
TEST(SimulatedChain, OldEntriesAreDeleted) {
  Scenario scenario = calm(2);
  scenario.has_chain = true;
  Simulation simulation(1, scenario);
  EXPECT_EQ(simulation.run_until(seconds(60)), std::nullopt);
  EXPECT_GT(simulation.check().commits(), 150);
  EXPECT_LE(simulation.keeper()->entries(), 17);
}

struct Broken {
  const char* name;
  SimulatedKeeper::Compares compares;
  Rules rules;
};

TEST(SimulatedChain, EachBrokenRuleIsNoticed) {
  const std::vector<Broken> broken = {
      {"entries are overwritten", {.creates_once = false}, {}},
      {"entries are created behind what was deleted",
       {.needs_the_one_before = false},
       {.chain_keeps_entries = false}},
      {"commits without all reports", {}, {.commits_need_all_reports = false}},
  };
  for (const Broken& rule : broken) {
    const auto violation = find_violation(20'000, [&](std::uint64_t seed) {
      Scenario scenario = scenario_of(seed);
      scenario.keeper_compares = rule.compares;
      scenario.rules = rule.rules;
      return scenario;
    });
    ASSERT_TRUE(violation) << rule.name << ": nothing is found";
    std::cout << rule.name << ": seed " << violation->seed << ", " << violation->text << "\n";
  }
}

// What is kept is for those that lag. Where nothing is, they end, and nothing is decided twice.
TEST(SimulatedChain, WhoLagsBehindWhatWasDeletedDecidesNothing) {
  for (std::uint64_t seed = 1; seed <= kSchedules / 4; ++seed) {
    Scenario scenario = scenario_of(seed);
    scenario.rules.chain_keeps_entries = false;
    Simulation simulation(seed, scenario);
    simulation.make_faults();
    std::optional<std::string> violation = simulation.run();
    if (violation && violation->find("no progress") == 0) violation.reset();
    ASSERT_FALSE(violation) << "seed " << seed << ": " << *violation;
  }
}

}  // namespace
}  // namespace shoal::collective::simulated_chain_test
