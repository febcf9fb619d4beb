#include "shoal/schedule/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/schedule/timeline.h"

namespace shoal::schedule {
namespace {

/// Forward, input and weight gradient equally long; activations of one unit a rank, however many
/// stages it holds.
Costs equal(int chunks, double f = 1, double b = 1, double w = 1) {
  return {{{f / chunks, b / chunks, w / chunks, 1.0 / chunks, 0}}, 0, 0, {}};
}

int chunks_of(const std::string& name) {
  return name == "interleaved" ? 3 : name == "zb-v" || name == "dualpipe-v" ? 2 : 1;
}

TEST(Generators, EveryTableIsCompleteAndFreeOfDeadlock) {
  for (const std::string& name : schedule_names()) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 30; ++micro_batches) {
        if (name == "interleaved" && ranks > 1 && micro_batches % ranks != 0) continue;
        if (name == "dualpipe-v" && micro_batches < 2 * ranks) continue;
        const Schedule schedule = make_schedule(name, ranks, chunks_of(name), micro_batches);
        ASSERT_NO_THROW(check(schedule))
            << name << " ranks=" << ranks << " micro_batches=" << micro_batches;
      }
    }
  }
}

TEST(Generators, TheForwardPassesOfEveryTableRunAlone) {
  for (const std::string& name : schedule_names()) {
    const Schedule whole = make_schedule(name, 4, chunks_of(name), 8);
    const Schedule part = forward_only(whole);
    // All forwards, in their order, and as many messages as there are between ranks; none hangs.
    const Timeline timeline = simulate(part, equal(1));
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<Action> forwards;
      for (const Action& action : whole.table[rank])
        if (action.kind == Kind::kForward) forwards.push_back(action);
      std::vector<Action> run;
      for (const Action& action : part.table[rank]) {
        EXPECT_TRUE(action.kind == Kind::kForward || action.kind == Kind::kSendActivation ||
                    action.kind == Kind::kReceiveActivation)
            << name << " " << to_string(action);
        if (is_compute(action.kind)) run.push_back(action);
      }
      EXPECT_EQ(run, forwards) << name;
      EXPECT_EQ(timeline.busy[rank], static_cast<double>(forwards.size())) << name;
    }
  }
}

// Bubble ratios of planning tables: bubble / ideal with F = B = W, so B + W = 2 F.
TEST(Generators, BubblesEqualTheClosedForms) {
  for (int p : {1, 2, 3, 4, 8, 16}) {
    for (int rounds : {2, 3, 6}) {
      const int m = p * rounds;
      const double ideal = 3.0 * m;
      const auto ratio = [&](const Schedule& schedule) {
        return simulate(schedule, equal(schedule.stages() / p)).longest_span() / ideal - 1;
      };
      EXPECT_NEAR(ratio(gpipe(p, m)), (p - 1.0) / m, 1e-12);
      EXPECT_NEAR(ratio(one_forward_one_backward(p, m)), (p - 1.0) / m, 1e-12);
      for (int v : {1, 2, 4}) {
        EXPECT_NEAR(ratio(interleaved(p, v, m)), (p - 1.0) / (v * m), 1e-12)
            << "p=" << p << " m=" << m << " v=" << v;
      }
      EXPECT_NEAR(ratio(zero_bubble_h1(p, m)), (p - 1.0) / (3 * m), 1e-12)
          << "p=" << p << " m=" << m;
      EXPECT_NEAR(ratio(zero_bubble_h2(p, m)), 0, 1e-12) << "p=" << p << " m=" << m;
      EXPECT_NEAR(ratio(zero_bubble_v(p, m)), 0, 1e-12) << "p=" << p << " m=" << m;
    }
  }
}

// planning fixtures, Narayanan et al. 2021: (p, m, v) -> ratio and fraction.
TEST(Generators, PublishedIdentities) {
  struct Row {
    int p;
    int m;
    int v;
    double ratio;
    double fraction;
  };
  for (const Row& row : {Row{8, 32, 1, 0.21875, 0.1795}, Row{8, 32, 2, 0.1094, 0.0986},
                         Row{8, 32, 4, 0.0547, 0.0519}, Row{4, 16, 1, 0.1875, 0.1579}}) {
    const double fraction =
        simulate(interleaved(row.p, row.v, row.m), equal(row.v)).bubble_fraction();
    EXPECT_NEAR(fraction, row.fraction, 5e-5);
    EXPECT_NEAR(fraction / (1 - fraction), row.ratio, 5e-5);
  }
}

// Rows of the table in planning data with unequal times: 1F1B (p-1)(F+B), ZB-H1 (p-1)(F+B-W) for W
// no longer than B, ZB-H2 (p-1)(F+B-2W).
TEST(Generators, UnequalTimesFollowTheFormulas) {
  const int p = 6;
  const int m = 24;
  const double f = 1;
  const double b = 1.25;
  const double w = 0.875;
  const double ideal = m * (f + b + w);
  EXPECT_NEAR(simulate(one_forward_one_backward(p, m), equal(1, f, b, w)).longest_span() - ideal,
              (p - 1) * (f + b + w), 1e-9);
  EXPECT_NEAR(simulate(zero_bubble_h1(p, m), equal(1, f, b, w)).longest_span() - ideal,
              (p - 1) * (f + b - w), 1e-9);
  EXPECT_NEAR(simulate(zero_bubble_h2(p, m), equal(1, f, b, w)).longest_span() - ideal,
              (p - 1) * (f + b - 2 * w), 1e-9);
}

// DualPipe's README: (PP/2 - 1)(F&B + B - 3W) with PP = 2p stages, B holding W, where a forward and
// a backward run as one; here they run one after the other, so that a message can leave between
// them and the bubble may only be smaller.
TEST(Generators, DualPipeVWaitsNoLongerThanItsFormula) {
  for (int p : {2, 3, 4, 8}) {
    for (int m : {2 * p, 5 * p}) {
      const double bubble =
          simulate(dual_pipe_v(p, m), {{StageCost{}}, 0, 0, {}}).longest_span() - 2 * m * 3.0;
      EXPECT_LE(bubble, (p - 1) * (3.0 + 2.0 - 3.0) + 1e-9) << "p=" << p << " m=" << m;
      EXPECT_GT(bubble, 0);
    }
  }
}

TEST(Generators, ActivationPeaksEqualTheClosedForms) {
  for (int p : {2, 4, 8}) {
    for (int m : {2 * p, 4 * p}) {
      const auto gpipe_peak = activation_peak(gpipe(p, m), equal(1));
      const auto plain = activation_peak(one_forward_one_backward(p, m), equal(1));
      for (int rank = 0; rank < p; ++rank) {
        EXPECT_EQ(gpipe_peak[rank], m);
        EXPECT_EQ(plain[rank], p - rank);
      }
      for (int v : {2, 3}) {
        EXPECT_NEAR(activation_peak(interleaved(p, v, m), equal(v))[0],
                    p * (1 + (p - 1.0) / (p * v)), 1e-9);
      }
      // Zero-bubble paper, table 2: (p - i + 1) M_B + (i - 1) M_W and (2p - 2i + 1) M_B + (2i - 2)
      // M_W on worker i, counted from 1.
      Costs costs = equal(1);
      costs.stages[0].weight_store = 0.4;
      const auto h1 = activation_peak(zero_bubble_h1(p, m), costs);
      const auto h2 = activation_peak(zero_bubble_h2(p, m), costs);
      for (int rank = 0; rank < p; ++rank) {
        EXPECT_NEAR(h1[rank], p - rank + rank * 0.4, 1e-9) << "p=" << p << " rank=" << rank;
        EXPECT_NEAR(h2[rank], 2 * (p - rank) - 1 + 2 * rank * 0.4, 1e-9)
            << "p=" << p << " rank=" << rank;
      }
      for (const double peak : activation_peak(zero_bubble_v(p, m), equal(2))) EXPECT_LE(peak, p);
      for (const double peak : activation_peak(dual_pipe_v(p, m), equal(2))) EXPECT_LE(peak, p + 1);
    }
  }
}

TEST(Generators, AScheduleHasItsNameAndItsStages) {
  EXPECT_EQ(schedule_names(), (std::vector<std::string>{"gpipe", "1f1b", "interleaved", "zb-h1",
                                                        "zb-h2", "zb-v", "dualpipe-v"}));
  for (const std::string& name : schedule_names()) {
    const Schedule schedule = make_schedule(name, 4, chunks_of(name), 8);
    EXPECT_EQ(schedule.name, name);
    EXPECT_EQ(schedule.micro_batches, 8);
    EXPECT_EQ(schedule.stages(), 4 * chunks_of(name));
  }
  EXPECT_EQ(interleaved(2, 2, 2).rank_of_stage, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(zero_bubble_v(2, 4).rank_of_stage, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(interleaved(1, 3, 2).stages(), 3);
  EXPECT_EQ(interleaved(3, 1, 2).table, one_forward_one_backward(3, 2).table);
}

TEST(Generators, WrongCountsAreRefused) {
  EXPECT_THROW(gpipe(0, 4), Error);
  EXPECT_THROW(one_forward_one_backward(4, 0), Error);
  EXPECT_THROW(interleaved(4, 2, 6), Error);
  EXPECT_THROW(dual_pipe_v(4, 7), Error);
  EXPECT_THROW(make_schedule("1f1b", 4, 2, 8), Error);
  EXPECT_THROW(make_schedule("zb-v", 4, 1, 8), Error);
  EXPECT_THROW(make_schedule("2f2b", 4, 1, 8), Error);
  EXPECT_THROW(interleaved(4, 0, 8), Error);
  EXPECT_THROW(zero_bubble_h1(0, 1), Error);
  EXPECT_THROW(zero_bubble_h2(1, 0), Error);
  EXPECT_THROW(zero_bubble_v(0, 1), Error);
  EXPECT_THROW(dual_pipe_v(0, 1), Error);
  EXPECT_NO_THROW(dual_pipe_v(4, 8));
  EXPECT_NO_THROW(interleaved(4, 1, 6)) << "it is 1F1B";
}

}  // namespace
}  // namespace shoal::schedule
