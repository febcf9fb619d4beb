#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/schedule/generators.h"
#include "shoal/schedule/schedule_file.h"
#include "shoal/schedule/timeline.h"
#include "tests/error_text.h"

namespace shoal::schedule::check_test {
namespace {

using testing::HasSubstr;

/// True when the first action of a rank may be this one: it needs nothing that the rank does
/// before.
bool may_be_first(const Action& action) {
  return action.kind == Kind::kReceiveActivation || action.kind == Kind::kReceiveGradient ||
         (action.kind == Kind::kForward && action.stage == 0);
}

/// Every table with one action removed, doubled, moved before what it needs or sent to another rank
/// must be refused: nothing in a table is idle.
TEST(Check, RefusesEveryDamagedTable) {
  for (const std::string& name : schedule_names()) {
    const int chunks = name == "interleaved" || name == "zb-v" || name == "dualpipe-v" ? 2 : 1;
    const Schedule good = make_schedule(name, 3, chunks, 6);
    for (int rank = 0; rank < 3; ++rank) {
      for (std::size_t i = 0; i < good.table[rank].size(); ++i) {
        Schedule bad = good;
        bad.table[rank].erase(bad.table[rank].begin() + i);
        EXPECT_THROW(check(bad), Error) << name << " without " << to_string(good.table[rank][i]);
        bad = good;
        bad.table[rank].insert(bad.table[rank].begin() + i, good.table[rank][i]);
        EXPECT_THROW(check(bad), Error) << name << " twice " << to_string(good.table[rank][i]);
        if (!may_be_first(good.table[rank][i])) {
          bad = good;
          std::rotate(bad.table[rank].begin(), bad.table[rank].begin() + i,
                      bad.table[rank].begin() + i + 1);
          EXPECT_THROW(check(bad), Error)
              << name << " begins with " << to_string(good.table[rank][i]);
        }
        if (!is_compute(good.table[rank][i].kind)) {
          for (const int away : {1, 2}) {
            bad = good;
            bad.table[rank][i].peer = (good.table[rank][i].peer + away) % 3;
            EXPECT_THROW(check(bad), Error) << name << " with " << to_string(good.table[rank][i])
                                            << " to rank " << bad.table[rank][i].peer;
          }
        }
      }
    }
  }
}

TEST(Check, NamesRankAndActionOfADeadlock) {
  // Two ranks, each of which wants to receive before it sends.
  Schedule schedule = one_forward_one_backward(2, 2);
  auto& first = schedule.table[0];
  // Rank 0: wait for the gradient of micro-batch 0 before its activation is sent.
  std::swap(first[1], first[4]);
  ASSERT_EQ(first[1].kind, Kind::kReceiveGradient);
  EXPECT_THAT(error_text([&] {
                simulate(schedule, {{StageCost{}}, 0, 0, {}});
              }),
              HasSubstr("rank 0 is stuck at 0RECV_B0"));
}

TEST(Check, SaysWhatIsWrong) {
  Schedule schedule = gpipe(2, 2);
  schedule.table[0].erase(schedule.table[0].begin());
  EXPECT_THAT(error_text([&] { check(schedule); }),
              HasSubstr("gpipe: rank 0: 0SEND_F0 comes before its forward"));
  schedule = gpipe(2, 2);
  schedule.table[1][1].stage = 0;
  EXPECT_THAT(error_text([&] { check(schedule); }),
              HasSubstr("rank 1: 0F0 is of a stage that this rank does not hold"));
  schedule = gpipe(2, 2);
  schedule.table[0][0].micro_batch = 7;
  EXPECT_THAT(error_text([&] { check(schedule); }),
              HasSubstr("0F7 is of a micro-batch that does not exist"));
}

TEST(Check, RefusesStagesRanksAndMicroBatchesThatDoNotExist) {
  const auto said = [](const std::function<void(Schedule&)>& damage) {
    Schedule schedule = gpipe(2, 2);
    damage(schedule);
    return error_text([&] { check(schedule); });
  };
  EXPECT_EQ(said([](Schedule&) {}), "");
  EXPECT_THAT(said([](Schedule& s) { s.rank_of_stage[1] = 2; }),
              HasSubstr("stage 1 is on rank 2 of 2"));
  EXPECT_THAT(said([](Schedule& s) { s.rank_of_stage[1] = -1; }),
              HasSubstr("stage 1 is on rank -1"));
  for (const int stage : {-1, 2}) {
    EXPECT_THAT(said([&](Schedule& s) { s.table[0][0].stage = stage; }),
                HasSubstr("is of a stage that does not exist"));
  }
  for (const int micro_batch : {-1, 2}) {
    EXPECT_THAT(said([&](Schedule& s) { s.table[0][0].micro_batch = micro_batch; }),
                HasSubstr("is of a micro-batch that does not exist"));
  }
  // The first stage has nobody before it, and the last one nobody behind it.
  for (const auto& [rank, kind] : {std::pair{0, Kind::kReceiveActivation},
                                   {0, Kind::kSendGradient},
                                   {1, Kind::kReceiveGradient},
                                   {1, Kind::kSendActivation}}) {
    EXPECT_THAT(said([&, rank = rank, kind = kind](Schedule& s) {
                  s.table[rank].push_back({kind, rank, 0, 1 - rank});
                }),
                HasSubstr("has nobody at its other end"));
  }
  EXPECT_THAT(said([](Schedule& s) { s.micro_batches = 3; }), HasSubstr("0F2 is missing"));
}

// Two stages on one rank hand over without a message, in their order.
TEST(Check, KnowsTheOrderOfStagesOnOneRank) {
  const auto said = [](const std::vector<Action>& actions) {
    return error_text([&] { check({"mine", 1, {0, 0}, {actions}}); });
  };
  const Action f0{Kind::kForward, 0, 0};
  const Action f1{Kind::kForward, 1, 0};
  const Action b0{Kind::kBackward, 0, 0};
  const Action b1{Kind::kBackward, 1, 0};
  EXPECT_EQ(said({f0, f1, b1, b0}), "");
  EXPECT_THAT(said({f1, f0, b1, b0}), HasSubstr("1F0 comes before its input"));
  EXPECT_THAT(said({f0, f1, b0, b1}), HasSubstr("0B0 comes before the gradient of its output"));
  const Action w0{Kind::kWeightGradient, 0, 0};
  const Action i0{Kind::kInputGradient, 0, 0};
  EXPECT_EQ(said({f0, f1, b1, i0, w0}), "");
  EXPECT_THAT(said({f0, f1, b1, w0, i0}), HasSubstr("0W0 comes before its input gradient"));
  EXPECT_THAT(said({f0, f1, b1, i0}), HasSubstr("0W0 is missing"));
  EXPECT_THAT(said({f0, f1, b1, b0, w0}), HasSubstr("0W0 comes twice"));
}

TEST(Timeline, StragglersAndTransfersLengthenTheStep) {
  const Schedule schedule = one_forward_one_backward(4, 8);
  Costs costs{{StageCost{}}, 0, 0, {}};
  const double plain = simulate(schedule, costs).makespan();
  EXPECT_DOUBLE_EQ(plain, (8 + 3) * 3.0);
  costs.slowdown = {1, 1, 2, 1};
  const Timeline slow = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(slow.busy[2], 2 * slow.busy[1]);
  EXPECT_GE(slow.makespan(), 8 * 6.0) << "the slow rank alone needs this long";
  costs.slowdown = {};
  costs.transfer = 0.25;
  // A chain: down and up once through three hops is the least that messages can add.
  EXPECT_GE(simulate(schedule, costs).makespan(), plain + 6 * 0.25 - 1e-12);
}

// F0 F1 on rank 0, then on rank 1; the second micro-batch takes three times as long on rank 0.
TEST(Timeline, ComputationsMayTakeTheTimesThatWereMeasured) {
  Costs costs{{{}}, 0, 0, {}};
  costs.measured = [](const Action& action) {
    if (action.kind != Kind::kForward) return 0.0;
    return action.stage == 0 && action.micro_batch == 1 ? 3.0 : 1.0;
  };
  const Timeline timeline = simulate(gpipe(2, 2), costs);
  EXPECT_EQ(timeline.busy[0], 4);
  EXPECT_EQ(timeline.busy[1], 2);
  EXPECT_EQ(timeline.makespan(), 5) << "rank 1 waits for the long one, and adds its own";
}

TEST(Timeline, AThousandRanksTakeNoTime) {
  const Schedule schedule = one_forward_one_backward(1024, 2048);
  EXPECT_NEAR(simulate(schedule, {{StageCost{}}, 0, 0, {}}).makespan(), (2048 + 1023) * 3.0, 1e-6);
}

TEST(ScheduleFile, SurvivesTheRoundTrip) {
  for (const std::string& name : schedule_names()) {
    const int chunks = name == "interleaved" || name == "zb-v" || name == "dualpipe-v" ? 2 : 1;
    Schedule schedule = make_schedule(name, 4, chunks, 8);
    const Schedule back = from_csv(to_csv(schedule), name);
    EXPECT_EQ(back, schedule);
  }
}

TEST(ScheduleFile, ReadsComputationsAloneAndIdleSlots) {
  const Schedule schedule = from_csv("0F0,0F1,,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n", "mine.csv");
  EXPECT_EQ(schedule.ranks(), 2);
  EXPECT_EQ(schedule.micro_batches, 2);
  EXPECT_EQ(schedule.rank_of_stage, (std::vector<int>{0, 1}));
  EXPECT_EQ(schedule.table, one_forward_one_backward(2, 2).table);
}

TEST(ScheduleFile, MistakesNameFileLineAndCell) {
  const auto read = [](const char* text) {
    return error_text([&] { from_csv(text, "mine.csv"); });
  };
  EXPECT_THAT(read(""), HasSubstr("mine.csv: is empty"));
  EXPECT_THAT(read("0F0,0X0"), HasSubstr("mine.csv: line 1: \"0X0\": must be stage"));
  EXPECT_THAT(read("0F0,0B0\n2F0,2B0"), HasSubstr("mine.csv: nobody computes stage 1"));
  EXPECT_THAT(read("0F0,-2UNSHARD"), HasSubstr("mine.csv: line 1: \"-2UNSHARD\": must be"));
  EXPECT_THAT(read("1UNSHARD"), HasSubstr("mine.csv: line 1: 1UNSHARD: nobody computes stage 1"));
  EXPECT_THAT(read("0F0,0B0,7SEND_F0"), HasSubstr("line 1: 7SEND_F0: nobody computes stage 7"));
  EXPECT_THAT(read("0F0,0B0,1SEND_F0"), HasSubstr("line 1: 1SEND_F0: nobody computes stage 1"));
  EXPECT_THAT(read("0F0,0B0\n0F1,0B1"),
              HasSubstr("mine.csv: line 2: 0F1: stage 0 is computed on line 1 already"));
  EXPECT_THAT(read("0F0"), HasSubstr("mine.csv: rank 0: 0I0 is missing"));
  EXPECT_THAT(read("0B0,0F0"), HasSubstr("comes before its forward"));
  EXPECT_THAT(read("0F0,0B0\n,,\n1F0,1B0"), HasSubstr("line 2 holds no action"));
  for (const char* cell : {"F0", "0F", "0", "0FF0", "0F0x", "x0F0"})
    EXPECT_THAT(read(cell), HasSubstr("must be stage")) << cell;
}

TEST(ScheduleFile, StagesAndMicroBatchesHaveALimit) {
  const auto read = [](const char* text) {
    return error_text([&] { from_csv(text, "mine.csv"); });
  };
  EXPECT_THAT(read("1000000F0"), HasSubstr("nobody computes stage 0"));
  EXPECT_THAT(read("1000001F0"), HasSubstr("must be stage"));
  EXPECT_THAT(read("0F1000000"), HasSubstr("is missing"));
  EXPECT_THAT(read("0F1000001"), HasSubstr("must be stage"));
}

TEST(ScheduleFile, BlanksAndEmptyLinesAtTheEndPlayNoPart) {
  EXPECT_EQ(from_csv(" 0F0 ,\t0B0 \r\n\n \n", "mine.csv").table, gpipe(1, 1).table);
}

TEST(ScheduleFile, MistakesAreThoseOfAConfiguration) {
  for (const char* text : {"", "x", "0F0,0B0\n2F0,2B0", "0B0,0F0"}) {
    try {
      from_csv(text, "mine.csv");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig) << text;
    }
  }
}

}  // namespace
}  // namespace shoal::schedule::check_test
