// When joiners come in: behind the step that runs, or at once where no step can run.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "shoal/collective/membership/membership.h"
#include "tests/collective/membership/simulation.h"

namespace shoal::collective::joining_test {
namespace {

using namespace membership;

// Whenever it asks, the step that runs is committed before it comes in.
TEST(Joining, AJoinerInterruptsNoAttempt) {
  for (int point = 0; point < 60; ++point) {
    Simulation simulation(23, calm(3));
    std::size_t joiner = 0;
    simulation.at(milliseconds(2000 + 11 * point), [&] { joiner = simulation.join(Duration{1}); });
    ASSERT_EQ(simulation.run_until(seconds(5)), std::nullopt);
    for (std::size_t node = 0; node < 4; ++node) {
      ASSERT_EQ(simulation.interrupted(node), 0u) << point << simulation.describe();
      ASSERT_GT(simulation.committed_at(node), simulation.entered(joiner)) << point;
    }
    // It asks twice, of any member and of the owner; a step takes a third of a second.
    ASSERT_LT(simulation.entered(joiner), milliseconds(4000)) << point;
  }
}

// No step is attempted here, whoever is ready for it.
TEST(Joining, AJoinerComesInAtOnceWhereSomebodyWaitsForIt) {
  for (const std::size_t waiting : {0u, 1u}) {
    Simulation simulation(24, calm(2));
    simulation.wait_for_joiners(waiting);
    std::size_t joiner = 0;
    simulation.at(seconds(2), [&] { joiner = simulation.join(Duration{1}); });
    EXPECT_EQ(simulation.run_until(seconds(4)), std::nullopt);
    expect_view(simulation, 1, {1, 2, 3}, 2);
    EXPECT_LT(simulation.entered(joiner), milliseconds(2900));
    EXPECT_EQ(simulation.check().commits(), 0u);
    EXPECT_EQ(simulation.interrupted(1 - waiting), 0u);
  }
}

// The step that runs cannot end without the member that waits, so it is given up.
TEST(Joining, AJoinerThatSomebodyWaitsForBehindAStepInterruptsTheOthers) {
  Simulation simulation(25, calm(3));
  simulation.at(seconds(2), [&] { simulation.wait_for_joiners(1); });
  simulation.at(seconds(4), [&] { simulation.join(Duration{1}); });
  EXPECT_EQ(simulation.run_until(seconds(6)), std::nullopt);
  expect_view(simulation, 0, {1, 2, 3, 4}, 2);
  EXPECT_EQ(simulation.interrupted(0), 1u);
  EXPECT_EQ(simulation.interrupted(1), 0u);
  EXPECT_EQ(simulation.interrupted(2), 1u);
}

// The view that removes the one that has crashed also has the joiner, and the one behind it has
// three keepers.
TEST(Joining, AJoinerComesInWithTheViewThatFollowsACrash) {
  Simulation simulation(26, calm(3));
  simulation.at(seconds(2), [&] { simulation.crash(2); });
  simulation.at(seconds(3), [&] { simulation.join(Duration{1}); });
  EXPECT_EQ(simulation.run_until(seconds(8)), std::nullopt);
  expect_view(simulation, 0, {1, 2, 4}, 3);
  EXPECT_EQ(simulation.interrupted(0), 1u);
}

TEST(Joining, AJoinerThatKnowsAnotherKeeperThanTheOwnerComesIn) {
  Simulation simulation(27, calm(3));
  simulation.at(seconds(2), [&] { simulation.join_by_way_of(2); });
  EXPECT_EQ(simulation.run_until(seconds(5)), std::nullopt);
  expect_view(simulation, 0, {1, 2, 3, 4}, 2);
}

// It looks for members that give it the state, of which the owner alone knows all.
TEST(Joining, AJoinerThatIsNotReadyLearnsTheViewAndDoesNotComeIn) {
  const auto now = Clock::time_point(seconds(1));
  Membership owner(id_of(1), first_view(1), {}, now);
  const auto ask = [&](bool ready) {
    return owner.on(
        Received{Letter{
            .from = id_of(2), .to = id_of(1), .body = Join{.who = member_of(2), .ready = ready}}},
        now);
  };
  owner.on(JoinersAwaited{1, 0}, now);
  const std::vector<Letter> answers = ask(false);
  ASSERT_EQ(answers.size(), 1u);
  const auto* start = std::get_if<Start>(&answers[0].body);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->view, owner.view());
  owner.on(Tick{}, now);
  EXPECT_EQ(owner.view()->epoch, 1u);
  ask(true);
  owner.on(Tick{}, now);
  EXPECT_EQ(owner.view()->everybody(), (std::vector{id_of(1), id_of(2)}));
}

// It is the last one, and nobody is ready to go on without it.
TEST(Joining, TheLastMemberLeavesWhereAJoinerIsNotReady) {
  const auto now = Clock::time_point(seconds(1));
  Membership last(id_of(1), first_view(1), {}, now);
  last.on(Received{Letter{
              .from = id_of(2), .to = id_of(1), .body = Join{.who = member_of(2), .ready = false}}},
          now);
  last.on(LeaveAsked{}, now);
  last.on(Tick{}, now + milliseconds(100));
  EXPECT_TRUE(last.has_left());
}

// A letter of somebody who waited for joiners comes when its attempt has begun.
TEST(Joining, AnEarlierWishForJoinersInterruptsNothing) {
  const auto now = Clock::time_point(seconds(1));
  Membership owner(id_of(1), first_view(1), {}, now);
  const auto to_owner = [&](Body body) {
    return Received{Letter{
        .from = id_of(1), .to = id_of(1), .lineage = 1, .epoch = 1, .body = std::move(body)}};
  };
  owner.on(JoinersAwaited{1, 0}, now);
  owner.on(AttemptAsked{1, 0}, now);
  const Received join{
      Letter{.from = id_of(2), .to = id_of(1), .body = Join{.who = member_of(2), .ready = true}}};
  owner.on(to_owner(Readiness{.step = 0, .ready = false}), now);
  owner.on(join, now);
  owner.on(Tick{}, now + milliseconds(100));
  EXPECT_EQ(owner.view()->epoch, 1u);
  EXPECT_FALSE(owner.keeper()->sealed());
  owner.on(StepReady{1, 0, {}, 4}, now);
  EXPECT_EQ(owner.place().step, 1u);
  EXPECT_EQ(owner.view()->epoch, 2u) << "the joiner comes in behind the step";
}

}  // namespace
}  // namespace shoal::collective::joining_test
