// Times of a pipeline of two ranks, worked out by hand.
#include "shoal/schedule/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/schedule/generators.h"
#include "tests/error_text.h"

namespace shoal::schedule::timeline_test {
namespace {

using testing::HasSubstr;
using Row = std::tuple<std::string, double, double>;

std::vector<Row> rows(const std::vector<Span>& spans) {
  std::vector<Row> result;
  for (const Span& span : spans) result.emplace_back(to_string(span.action), span.begin, span.end);
  return result;
}

// Forward 1, backward 2 + 3, a message 10 of which its sender is busy for 4.
Costs costs() {
  return {.stages = {{.forward = 1, .input_gradient = 2, .weight_gradient = 3}},
          .transfer = 10,
          .occupancy = 4};
}

TEST(Timeline, FollowsTheMessages) {
  const Timeline timeline = simulate(gpipe(2, 1), costs());
  ASSERT_EQ(timeline.ranks.size(), 2u);
  EXPECT_EQ(
      rows(timeline.ranks[0]),
      (std::vector<Row>{{"0F0", 0, 1}, {"0SEND_F0", 1, 5}, {"0RECV_B0", 5, 27}, {"0B0", 27, 32}}));
  EXPECT_EQ(rows(timeline.ranks[1]),
            (std::vector<Row>{
                {"1RECV_F0", 0, 11}, {"1F0", 11, 12}, {"1B0", 12, 17}, {"1SEND_B0", 17, 21}}));
  EXPECT_EQ(timeline.busy, (std::vector<double>{6, 6}));
  EXPECT_EQ(timeline.begin, (std::vector<double>{0, 11})) << "of its first computation";
  EXPECT_EQ(timeline.end, (std::vector<double>{32, 21}));
  EXPECT_EQ(timeline.makespan(), 32);
  EXPECT_EQ(timeline.longest_span(), 32);
  EXPECT_DOUBLE_EQ(timeline.bubble_fraction(), 1 - 6.0 / 32);
}

TEST(Timeline, TheLongestSpanIsThatOfOneRank) {
  Timeline timeline;
  timeline.begin = {0, 5};
  timeline.end = {8, 12};
  timeline.busy = {4, 6};
  EXPECT_EQ(timeline.makespan(), 12);
  EXPECT_EQ(timeline.longest_span(), 8);
  EXPECT_DOUBLE_EQ(timeline.bubble_fraction(), 1 - 5.0 / 8);
  EXPECT_EQ(Timeline().makespan(), 0);
}

TEST(Timeline, ARankWithoutComputationsBeginsAtNought) {
  Schedule schedule = gpipe(1, 1);
  schedule.table.emplace_back();
  const Timeline timeline = simulate(schedule, costs());
  EXPECT_EQ(timeline.begin, (std::vector<double>{0, 0}));
  EXPECT_EQ(timeline.end, (std::vector<double>{6, 0}));
}

TEST(Timeline, StagesAndRanksHaveTheirOwnSpeed) {
  Costs own = costs();
  own.stages.push_back({.forward = 100, .input_gradient = 200, .weight_gradient = 300});
  own.slowdown = {2, 0.5};
  const Timeline timeline = simulate(gpipe(2, 1), own);
  EXPECT_EQ(timeline.busy, (std::vector<double>{12, 300}));
  EXPECT_EQ(timeline.end[1], 12 + 300 + 4);
  EXPECT_EQ(timeline.end[0], 12 + 300 + 10 + 10);
}

TEST(Timeline, AVisitorGetsTheSpansInsteadOfAList) {
  const Timeline kept = simulate(gpipe(2, 2), costs());
  std::vector<std::vector<Span>> visited(2);
  const Timeline timeline = simulate(
      gpipe(2, 2), costs(), [&](int rank, const Span& span) { visited[rank].push_back(span); });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(timeline.ranks[rank].empty());
    EXPECT_EQ(rows(visited[rank]), rows(kept.ranks[rank]));
  }
  EXPECT_EQ(timeline.end, kept.end);
}

TEST(Timeline, CostsThatDoNotFitAreRefused) {
  Costs wrong = costs();
  wrong.stages.resize(3);
  EXPECT_THAT(error_text([&] { simulate(gpipe(2, 1), wrong); }), HasSubstr("given=3 stages=2"));
  EXPECT_THAT(error_text([&] { activation_peak(gpipe(2, 1), wrong); }), HasSubstr("given=3"));
  wrong = costs();
  wrong.slowdown = {1};
  EXPECT_THAT(error_text([&] { simulate(gpipe(2, 1), wrong); }), HasSubstr("given=1 ranks=2"));
}

// A unit is held from the forward pass on; a half of it, here, until the weight gradient.
TEST(ActivationPeak, FollowsWhatIsHeld) {
  Costs own = costs();
  own.stages[0].activations = 8;
  own.stages[0].weight_store = 2;
  Schedule schedule{"mine", 2, {0}, {{}}};
  for (const auto& [kind, micro_batch] : {std::pair{Kind::kForward, 0},
                                          {Kind::kInputGradient, 0},
                                          {Kind::kForward, 1},
                                          {Kind::kInputGradient, 1},
                                          {Kind::kWeightGradient, 0},
                                          {Kind::kWeightGradient, 1}})
    schedule.table[0].push_back({kind, 0, micro_batch});
  EXPECT_EQ(activation_peak(schedule, own), std::vector<double>{10});
  check(schedule);
  own.stages[0].weight_store = 0;
  EXPECT_EQ(activation_peak(schedule, own), std::vector<double>{8});
  EXPECT_EQ(activation_peak(gpipe(1, 3), own), std::vector<double>{24});
  Costs small = own;
  small.stages[0].activations = 0.25;
  EXPECT_EQ(activation_peak(gpipe(1, 3), small), std::vector<double>{0.75});
  EXPECT_DOUBLE_EQ(own.stages[0].compute(), 6);
}

TEST(Action, HasTheMarksOfPyTorch) {
  const struct {
    Kind kind;
    const char* mark;
    bool computes;
    bool sends;
  } all[] = {{Kind::kForward, "F", true, false},
             {Kind::kBackward, "B", true, false},
             {Kind::kInputGradient, "I", true, false},
             {Kind::kWeightGradient, "W", true, false},
             {Kind::kSendActivation, "SEND_F", false, true},
             {Kind::kReceiveActivation, "RECV_F", false, false},
             {Kind::kSendGradient, "SEND_B", false, true},
             {Kind::kReceiveGradient, "RECV_B", false, false}};
  for (const auto& one : all) {
    EXPECT_STREQ(mark(one.kind), one.mark);
    EXPECT_EQ(is_compute(one.kind), one.computes) << one.mark;
    EXPECT_EQ(is_send(one.kind), one.sends) << one.mark;
    EXPECT_EQ(to_string({one.kind, 12, 3}), "12" + std::string(one.mark) + "3");
  }
}

}  // namespace
}  // namespace shoal::schedule::timeline_test
