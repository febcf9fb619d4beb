#include "apps/shoal/watch/top_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace shoal::apps::top_screen_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Characters of a UTF-8 text.
std::size_t length(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

TEST(Curve, RisesFromTheLowestToTheHighest) {
  EXPECT_THAT(curve({0, 1}, 10, 1), ElementsAre("▁█"));
  EXPECT_THAT(curve({0, 1, 2}, 10, 2), ElementsAre("  █", "▁██"));
  // 0.5 of two rows is one row; 0.75 is one and a half.
  EXPECT_THAT(curve({0, 0.5, 0.75, 1}, 10, 2), ElementsAre("  ▄█", "▁███"));
  EXPECT_THAT(curve({3, 3}, 10, 2), ElementsAre("  ", "██")) << "no range: the middle";
  EXPECT_THAT(curve({}, 10, 2), IsEmpty());
}

TEST(Curve, ShowsMeansWhereThereAreMoreNumbersThanColumns) {
  EXPECT_THAT(curve({0, 2, 8, 10}, 2, 1), ElementsAre("▁█"));
  EXPECT_THAT(curve({0, 0, 0, 9, 9}, 2, 1), ElementsAre("▁█"));
  std::vector<double> many(1000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<double>(i);
  for (const std::string& line : curve(many, 7, 3)) EXPECT_EQ(length(line), 7u);
}

TEST(Bar, IsFilledByItsPart) {
  EXPECT_EQ(bar(0, 4), "····");
  EXPECT_EQ(bar(0.5, 4), "██··");
  EXPECT_EQ(bar(1, 4), "████");
  EXPECT_EQ(bar(7, 4), "████");
  EXPECT_EQ(bar(-1, 4), "····");
}

RunSummary run_of(int ranks) {
  RunSummary run;
  run.directory = "runs/x";
  run.job = JobStatus{.phase = "training", .total_steps = 8};
  for (int rank = 0; rank < ranks; ++rank) {
    run.job->ranks.push_back(
        {.rank = rank, .process = 100 + rank, .state = ProcessState::kRunning, .step = 5});
  }
  for (int step = 1; step <= 4; ++step) {
    train::StepMetrics metrics;
    metrics.step = step;
    metrics.loss = 4.0 / step;
    run.recent.push_back(metrics);
  }
  return run;
}

TEST(TopScreen, HasACurveAndABarForEachRank) {
  const auto lines = top_screen(run_of(3), 100, 50);
  EXPECT_THAT(lines[0], HasSubstr("runs/x: training, step 4 of 8 (50 %)"));
  EXPECT_THAT(lines, ::testing::Contains("loss of steps 1 to 4, from 1.0000 to 4.0000:"));
  EXPECT_THAT(lines, ::testing::Contains("██▅▁")) << "the lowest row of six";
  // Four of eight steps are complete; a bar takes an eighth of the line.
  EXPECT_THAT(lines.back(), HasSubstr(bar(0.5, 12) + "  rank 2 of 3  process 102"));
}

TEST(TopScreen, TheBarGivesWayToTheFigures) {
  RunSummary run = run_of(3);
  for (RankStatus& rank : run.job->ranks) {
    rank.process = 1234567;
    rank.resident_bytes = 193000000;
    rank.age_s = 0.3;
  }
  EXPECT_THAT(top_screen(run, 80, 50).back(), ::testing::EndsWith("0.3 s ago  193 MB"));
}

TEST(TopScreen, FitsItsTerminal) {
  for (const int columns : {1, 7, 40, 200}) {
    for (const int rows : {1, 2, 5, 14, 60}) {
      const auto lines = top_screen(run_of(20), columns, rows);
      EXPECT_LE(lines.size(), static_cast<std::size_t>(rows));
      for (const std::string& line : lines)
        EXPECT_LE(length(line), static_cast<std::size_t>(columns));
    }
  }
  // Ten lines without ranks, two of them, and a line for the others.
  const auto lines = top_screen(run_of(20), 100, 13);
  EXPECT_EQ(lines.size(), 13u);
  EXPECT_THAT(lines.back(), ::testing::MatchesRegex("\\.\\.\\. and 1[0-9] more ranks"));
}

TEST(TopScreen, ShowsNoEscapesOfAnError) {
  RunSummary run;
  run.directory = "runs/x";
  run.last = LastRun{.code = 80, .cause = "rank 1 failed: \x1b[2J\nand more"};
  for (const std::string& line : top_screen(run, 100, 50)) {
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
    EXPECT_EQ(line.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace shoal::apps::top_screen_test
