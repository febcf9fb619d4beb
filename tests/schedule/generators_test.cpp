#include "shoal/schedule/generators.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/schedule/timeline.h"

namespace shoal::schedule::generators_test {
namespace {

/// Forward, input and weight gradient equally long; activations of one unit a rank, however many
/// stages it holds.
Costs equal(int chunks, double f = 1, double b = 1, double w = 1) {
  return {{{f / chunks, b / chunks, w / chunks, 1.0 / chunks, 0}}, 0, 0, {}};
}

int chunks_of(const std::string& name) {
  return name == "interleaved" ? 3 : name == "zb-v" || name == "dualpipe-v" ? 2 : 1;
}

/// Calls `visit` with every table of up to 16 stages and 64 micro-batches.
void every_table(const std::function<void(const Schedule&, int chunks)>& visit) {
  for (const std::string& name : schedule_names()) {
    std::vector<int> all_chunks{chunks_of(name)};
    if (name == "interleaved") all_chunks = {2, 3, 4};
    for (const int chunks : all_chunks) {
      for (int ranks = 1; ranks * chunks <= 16; ++ranks) {
        for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
          if (name == "interleaved" && ranks > 1 && micro_batches % ranks != 0) continue;
          if (name == "dualpipe-v" && micro_batches < 2 * ranks) continue;
          visit(make_schedule(name, ranks, chunks, micro_batches), chunks);
        }
      }
    }
  }
}

std::string text_of(const Schedule& schedule) {
  return fmt::format("{} ranks={} stages={} micro_batches={}", schedule.name, schedule.ranks(),
                     schedule.stages(), schedule.micro_batches);
}

TEST(Generators, EveryTableIsCompleteAndFreeOfDeadlock) {
  int tables = 0;
  every_table([&](const Schedule& schedule, int) {
    ASSERT_NO_THROW(check(schedule)) << text_of(schedule);
    ++tables;
  });
  EXPECT_GT(tables, 5500);
}

/// What a rank waits in a step with F = B = W = 1 a rank and micro-batch: the rows of planning's
/// table, which hold from p micro-batches on (2 p - 1 for ZB-H2 and ZB-V). With fewer, a rank waits
/// for the first micro-batch to go down the pipeline and up again while it has nothing else: each
/// micro-batch that is missing there is a wait more.
double bubble_of(const Schedule& schedule, int chunks) {
  const int p = schedule.ranks();
  const int m = schedule.micro_batches;
  const std::string& name = schedule.name;
  if (p == 1) return 0;
  // A rank waits while the p - 1 others have their turns.
  if (name == "in_turn") return 3.0 * m * (p - 1);
  if (name == "gpipe" || name == "1f1b") return 3 * (p - 1);
  if (name == "interleaved") return 3.0 * (p - 1) / chunks;
  if (name == "zb-h1") return std::max(p - 1, 2 * p - 1 - m);
  // DualPipe's README has (PP / 2 - 1) (F&B + B - 3 W) with PP = 2 p stages, B with its W, where a
  // forward and a backward run as one: 2 (p - 1) stages. Here one runs after the other, and a
  // message leaves in between: half of that. A stage is half of a rank.
  if (name == "dualpipe-v") return 0.5 * (p - 1);
  return std::max(0, 2 * p - 1 - m);
}

TEST(Generators, BubblesEqualTheClosedForms) {
  every_table([&](const Schedule& schedule, int chunks) {
    const double work = 3.0 * schedule.micro_batches;
    EXPECT_NEAR(simulate(schedule, equal(chunks)).longest_span() - work,
                bubble_of(schedule, chunks), 1e-9)
        << text_of(schedule);
  });
}

/// The most micro-batches of which rank i holds activations: planning's table, for m micro-batches
/// that may be fewer than those that a rank could hold.
double peak_of(const Schedule& schedule, int chunks, int i) {
  const int p = schedule.ranks();
  const int m = schedule.micro_batches;
  const std::string& name = schedule.name;
  if (name == "in_turn") return 1;
  if (p == 1 && name != "gpipe") return name == "dualpipe-v" && m > 1 ? 1.5 : 1;
  if (name == "gpipe") return m;
  if (name == "1f1b" || name == "zb-h1") return std::min(m, p - i);
  if (name == "zb-h2") return std::min(m, 2 * (p - i) - 1);
  if (name == "interleaved") {
    // With m = p there is no steady state: all forwards come first.
    const int ahead = m == p ? m * chunks : 2 * (p - i - 1) + (chunks - 1) * p + 1;
    return std::min<double>(m, static_cast<double>(ahead) / chunks);
  }
  // Of the last micro-batches rank i holds the stage of the way down alone.
  if (name == "zb-v") return std::min<double>({p * 1.0, m * 1.0, (m + 1 + i) / 2.0});
  return p + 0.5;
}

TEST(Generators, ActivationPeaksEqualTheClosedForms) {
  every_table([&](const Schedule& schedule, int chunks) {
    const auto peaks = activation_peak(schedule, equal(chunks));
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      EXPECT_NEAR(peaks[rank], peak_of(schedule, chunks, rank), 1e-9)
          << text_of(schedule) << " rank=" << rank;
    }
  });
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

// Narayanan et al., "PipeDream", 2019: without a pipeline one of p ranks works at a time, so that
// they lose (p - 1) / p of the time. With stages of different costs a step takes the sum of all.
TEST(Generators, InTurnOneRankWorksAtATime) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {1, 2, 7}) {
      const Schedule table = in_turn(p, m);
      EXPECT_NEAR(simulate(table, equal(1)).bubble_fraction(), (p - 1.0) / p, 1e-12)
          << text_of(table);
      Costs costs{{}, 0.25, 0, {}};
      double sum = 0;
      for (int stage = 0; stage < p; ++stage) {
        costs.stages.push_back({1.0 + stage, 2.0 + stage, 0.5, 1, 0});
        sum += costs.stages.back().compute();
      }
      // Between two stages a micro-batch sends an activation and a gradient.
      const Timeline timeline = simulate(table, costs);
      EXPECT_NEAR(timeline.makespan(), m * (sum + 2 * (p - 1) * 0.25), 1e-9) << text_of(table);
      std::vector<std::pair<double, double>> turns;
      for (const auto& rank : timeline.ranks) {
        for (const Span& span : rank)
          if (is_compute(span.action.kind)) turns.emplace_back(span.begin, span.end);
      }
      std::sort(turns.begin(), turns.end());
      ASSERT_EQ(turns.size(), 2u * p * m);
      for (std::size_t i = 1; i < turns.size(); ++i)
        EXPECT_GE(turns[i].first, turns[i - 1].second - 1e-9) << text_of(table);
    }
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

// Zero-bubble paper, table 2: (p - i + 1) M_B + (i - 1) M_W and (2p - 2i + 1) M_B + (2i - 2) M_W on
// worker i, counted from 1.
TEST(Generators, WhatWeightGradientsKeepIsInThePeaks) {
  for (int p : {2, 4, 8}) {
    for (int m : {2 * p, 4 * p}) {
      Costs costs = equal(1);
      costs.stages[0].weight_store = 0.4;
      const auto h1 = activation_peak(zero_bubble_h1(p, m), costs);
      const auto h2 = activation_peak(zero_bubble_h2(p, m), costs);
      for (int rank = 0; rank < p; ++rank) {
        EXPECT_NEAR(h1[rank], p - rank + rank * 0.4, 1e-9) << "p=" << p << " rank=" << rank;
        EXPECT_NEAR(h2[rank], 2 * (p - rank) - 1 + 2 * rank * 0.4, 1e-9)
            << "p=" << p << " rank=" << rank;
      }
    }
  }
}

// dualpipev.py of DeepSeek's DualPipe: rank i cuts p - 1 - i backward passes in two in step 3, the
// second half of the 2 (i + 1) of step 6, and the p - 1 - i of step 7; steps 4 and 5 cut none.
TEST(Generators, DualPipeCutsTheBackwardPassesOfThePaper) {
  for (const int p : {1, 2, 3, 4, 7}) {
    const Schedule schedule = dual_pipe_v(p, 2 * p + 1);
    for (int rank = 0; rank < p; ++rank) {
      std::string found;
      for (const Action& action : schedule.table[rank]) {
        if (action.kind == Kind::kBackward) found += 'B';
        if (action.kind == Kind::kInputGradient) found += 'I';
      }
      const int cut_first = p - 1 - rank;
      EXPECT_EQ(found, std::string(cut_first, 'I') +
                           std::string(2 * schedule.micro_batches - cut_first - p, 'B') +
                           std::string(p, 'I'))
          << "p=" << p << " rank=" << rank;
    }
  }
}

// Behind the last input gradient of ZB-V comes the oldest weight gradient of the first half, as in
// PyTorch's ScheduleZBVZeroBubble, and then those that are left in the order of their input
// gradients.
TEST(Generators, ZeroBubbleVEndsWithTheWeightGradientsInTheirOrder) {
  for (const int p : {2, 3, 5}) {
    const Schedule schedule = zero_bubble_v(p, 2 * p);
    for (int rank = 0; rank < p; ++rank) {
      std::vector<Action> pending;
      std::vector<Action> last;
      for (const Action& action : schedule.table[rank]) {
        if (action.kind == Kind::kInputGradient) {
          pending.push_back({Kind::kWeightGradient, action.stage, action.micro_batch});
          last.clear();
        }
        if (action.kind != Kind::kWeightGradient) continue;
        last.push_back(action);
      }
      // Those that were computed before the last input gradient are pending no more.
      std::vector<Action> left;
      for (const Action& action : pending)
        if (std::find(last.begin(), last.end(), action) != last.end()) left.push_back(action);
      const auto down = std::find_if(left.begin(), left.end(),
                                     [&](const Action& action) { return action.stage == rank; });
      ASSERT_NE(down, left.end());
      std::rotate(left.begin(), down, down + 1);
      EXPECT_EQ(last, left) << "p=" << p << " rank=" << rank;
    }
  }
}

TEST(Generators, AScheduleHasItsNameAndItsStages) {
  EXPECT_EQ(schedule_names(), (std::vector<std::string>{"in_turn", "gpipe", "1f1b", "interleaved",
                                                        "zb-h1", "zb-h2", "zb-v", "dualpipe-v"}));
  for (const std::string& name : schedule_names()) {
    const Schedule schedule = make_schedule(name, 4, chunks_of(name), 8);
    EXPECT_EQ(schedule.name, name);
    EXPECT_EQ(schedule.micro_batches, 8);
    EXPECT_EQ(schedule.stages(), 4 * chunks_of(name));
  }
  EXPECT_EQ(interleaved(2, 2, 2).rank_of_stage, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(zero_bubble_v(2, 4).rank_of_stage, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(interleaved(1, 3, 2).stages(), 3);
  for (const int ranks : {2, 3})
    EXPECT_EQ(interleaved(ranks, 1, 2).table, one_forward_one_backward(ranks, 2).table);
}

TEST(Generators, WrongCountsAreRefused) {
  EXPECT_THROW(in_turn(0, 4), Error);
  EXPECT_THROW(in_turn(4, 0), Error);
  EXPECT_THROW(make_schedule("in_turn", 4, 2, 8), Error);
  EXPECT_THROW(gpipe(0, 4), Error);
  EXPECT_THROW(one_forward_one_backward(4, 0), Error);
  EXPECT_THROW(interleaved(4, 2, 6), Error);
  EXPECT_THROW(dual_pipe_v(4, 7), Error);
  EXPECT_THROW(make_schedule("1f1b", 4, 2, 8), Error);
  EXPECT_THROW(make_schedule("zb-v", 4, 1, 8), Error);
  EXPECT_THROW(make_schedule("2f2b", 4, 1, 8), Error);
  EXPECT_THROW(interleaved(4, 0, 8), Error);
  EXPECT_THROW(interleaved(0, 2, 8), Error);
  EXPECT_THROW(interleaved(4, 2, 0), Error);
  EXPECT_THROW(zero_bubble_h1(0, 1), Error);
  EXPECT_THROW(zero_bubble_h2(1, 0), Error);
  EXPECT_THROW(zero_bubble_v(0, 1), Error);
  EXPECT_THROW(dual_pipe_v(0, 1), Error);
  EXPECT_NO_THROW(dual_pipe_v(4, 8));
  EXPECT_NO_THROW(interleaved(4, 1, 6)) << "it is 1F1B";
}

}  // namespace
}  // namespace shoal::schedule::generators_test
