// Ten thousand schedules of losses, partitions, crashes and joins, in each of which the members
// must agree, and go on once the faults have ended; and that the simulator notices broken rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/collective/membership/simulation.h"
#include "tests/sanitized.h"

namespace shoal::collective::simulated_agreement_test {
namespace {

using namespace membership;

/// Fewer than joiners, so that some show one that was used.
struct Tokens {
  wire::TokenKey key = wire::token_key("secret");
  std::vector<std::string> all;
  Tokens() {
    const auto far = std::chrono::system_clock::now() + std::chrono::hours(24);
    while (all.size() < 3) all.push_back(wire::issue_join_token("secret", "", far));
  }
};
const Tokens kTokens;

/// What a seed is about: how many members, whether there is a witness, and the policy.
Scenario scenario_of(std::uint64_t seed) {
  Scenario scenario;
  scenario.members = 2 + seed % 5;
  scenario.witnesses = seed % 3 == 0 ? 1 : 0;
  const auto policies = {OnQuorumLoss::kStop, OnQuorumLoss::kSurvivors, OnQuorumLoss::kWitness};
  scenario.on_quorum_loss = policies.begin()[(seed / 5) % (scenario.witnesses > 0 ? 3 : 2)];
  scenario.as_bytes = seed % 16 == 0;
  if (seed % 4 == 1) {
    scenario.admission = {.by_token = true, .cluster = "", .key = kTokens.key, .used = {}};
    scenario.tokens = kTokens.all;
  }
  return scenario;
}

/// What happened in all schedules of a test.
struct Totals {
  std::uint64_t events = 0;
  std::uint64_t commits = 0;
  std::uint64_t views = 0;
  std::uint64_t forks = 0;
  std::uint64_t joined = 0;
  std::uint64_t ended = 0;         ///< schedules in which everybody ended
  std::uint64_t had_to_go_on = 0;  ///< schedules in which nobody may say that no majority was left
};

/// The seeds of one test: [first, first + count).
void expect_agreement(std::uint64_t first, std::uint64_t count, Totals& totals) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation(seed, scenario_of(seed));
    simulation.make_faults();
    const std::optional<std::string> violation = simulation.run();
    ASSERT_FALSE(violation) << "seed " << seed << ": " << *violation;
    totals.events += simulation.events();
    totals.commits += simulation.check().commits();
    totals.views += simulation.check().views();
    totals.forks += simulation.check().lineages() - 1;
    totals.joined += simulation.joined();
    totals.ended += simulation.all_have_ended();
    totals.had_to_go_on += simulation.had_to_go_on();
    // Of two lineages that meet one goes on.
    if (scenario_of(seed).on_quorum_loss == OnQuorumLoss::kSurvivors &&
        !simulation.somebody_crashed_or_left()) {
      ASSERT_FALSE(simulation.all_have_ended()) << "seed " << seed << simulation.describe();
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::cout << count << " schedules from seed " << first << ", " << totals.events << " events, "
            << totals.commits << " steps committed, " << totals.views << " views, " << totals.forks
            << " forks, " << totals.joined << " joiners; in " << totals.ended
            << " everybody ended, in " << totals.had_to_go_on << " a majority was left; "
            << static_cast<double>(count) / took.count() << " schedules a second\n";
}

// Sanitizers look for mistakes in memory, and take ten times as long.
constexpr std::uint64_t kSchedules = kSanitized ? 1'000 : 10'000;

TEST(SimulatedAgreement, MembersAgreeAndGoOnInTenThousandSchedules) {
  Totals totals;
  expect_agreement(1, kSchedules, totals);
  // Schedules in which little happens show little.
  EXPECT_GT(totals.commits, 5 * kSchedules);
  EXPECT_GT(totals.views, kSchedules + kSchedules / 5);
  EXPECT_GT(totals.forks, kSchedules / 100);
  EXPECT_GT(totals.joined, kSchedules / 50);
  EXPECT_GT(totals.had_to_go_on, kSchedules / 4);
  EXPECT_LT(totals.ended, kSchedules / 2);
}

// Letters are lost, doubled and late, members stand still, and others join all the time: whatever
// the order, no attempt is interrupted, and each joiner waits for one commit at most.
TEST(SimulatedAgreement, JoinersInterruptNoAttemptAndWaitForOneCommit) {
  std::uint64_t joined = 0;
  std::uint64_t commits = 0;
  for (std::uint64_t seed = 1; seed <= kSchedules / 4; ++seed) {
    Scenario scenario = scenario_of(seed);
    scenario.members = 1 + seed % 5;
    scenario.only_joins = true;
    scenario.most_faults = 12;
    scenario.suspect_after = std::chrono::hours(1);
    if (seed % 2 == 0) {
      scenario.loss = 0.3;
      scenario.late = 0.3;
    }
    Simulation simulation(seed, scenario);
    simulation.make_faults();
    const std::optional<std::string> violation = simulation.run();
    ASSERT_FALSE(violation) << "seed " << seed << ": " << *violation << simulation.describe();
    joined += simulation.joined();
    commits += simulation.check().commits();
  }
  EXPECT_GT(joined, kSchedules / 2);
  EXPECT_GT(commits, 2 * kSchedules);
}

// Two that fall silent at once and leave one keeper; a decided view whose keepers went to forks; a
// last member that wanted to leave to a joiner that had crashed.
TEST(SimulatedAgreement, SchedulesInWhichTheyOnceStoodStill) {
  Totals totals;
  for (const std::uint64_t seed : {37009u, 20356u, 28590u, 135887u, 111470u})
    expect_agreement(seed, 1, totals);
}

TEST(SimulatedAgreement, ASeedGivesTheSameScheduleAgain) {
  const auto run = [](std::uint64_t seed) {
    Simulation simulation(seed, scenario_of(seed));
    simulation.make_faults();
    EXPECT_EQ(simulation.run(), std::nullopt);
    return std::pair(simulation.events(), simulation.describe());
  };
  for (std::uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(run(seed), run(seed));
}

struct Broken {
  const char* name;
  Rules rules;
  std::vector<const char*> violations;  ///< one of these is found
};

// Each rule is what keeps some schedule from disagreement.
TEST(SimulatedAgreement, EachBrokenRuleIsNoticed) {
  const char* const two_views = "has two different views";
  const char* const undone = "and undone by epoch";
  const std::vector<Broken> broken = {
      {"a vote below the majority", {.votes_below_majority = 1}, {two_views, undone, "too few"}},
      {"the majority of the new keepers", {.counts_with_new_keepers = true}, {two_views, undone}},
      {"promises forget views", {.promise_reports_view = false}, {two_views}},
      {"promises forget steps", {.promise_reports_step = false}, {undone}},
      {"promises do not seal", {.promise_seals = false}, {undone}},
      {"lower ballots are accepted", {.refuses_lower_ballots = false}, {two_views}},
      {"accepted views are not taken over", {.adopts_accepted_view = false}, {two_views}},
      {"members act before keepers hold",
       {.waits_for_holders = false},
       {"too few of its keepers hold"}},
      {"commits without all reports",
       {.commits_need_all_reports = false},
       {"has not attempted it"}},
  };
  // With sanitizers one is enough: the schedules run the code of the tests above.
  for (const Broken& rule : std::span(broken).first(kSanitized ? 1 : broken.size())) {
    const auto violation = find_violation(20'000, [&](std::uint64_t seed) {
      Scenario scenario = scenario_of(seed);
      scenario.rules = rule.rules;
      return scenario;
    });
    ASSERT_TRUE(violation) << rule.name << ": nothing is found";
    const bool is_expected = std::any_of(
        rule.violations.begin(), rule.violations.end(),
        [&](const char* text) { return violation->text.find(text) != std::string::npos; });
    EXPECT_TRUE(is_expected) << rule.name << ": " << violation->text;
    std::cout << rule.name << ": seed " << violation->seed << ", " << violation->text << "\n";
  }
}

}  // namespace
}  // namespace shoal::collective::simulated_agreement_test
