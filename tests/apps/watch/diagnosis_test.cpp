#include "apps/shoal/watch/diagnosis.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/apps/program.h"

namespace shoal::apps::diagnosis_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kStuck =
    R"({"record":"verdict","group":"world","sequence":7,"text":"#7 all_reduce: rank 1 never entered it"})"
    "\n";

JobLook look(std::int64_t step_0, std::int64_t step_1, const std::string& flights = "") {
  JobLook look{.status = {.phase = "training"}, .flights = flights};
  look.status.ranks = {
      {.rank = 0, .process = 10, .state = ProcessState::kRunning, .step = step_0, .age_s = 3},
      {.rank = 1, .process = 11, .state = ProcessState::kRunning, .step = step_1, .age_s = 3}};
  return look;
}

TEST(Diagnosis, OfARunThatGoesOn) {
  // At each moment some rank waits for another: that is no news while steps are completed.
  const Diagnosis found = diagnose(look(5, 5, kStuck), look(9, 8, kStuck), 1.25);
  EXPECT_FALSE(found.stands_still);
  EXPECT_THAT(found.lines, ElementsAre("The ranks go on: rank 0 was in step 5 and is in step 9, "
                                       "1.2 s later."));
}

TEST(Diagnosis, NamesAStoppedRankAndWhereTheOthersWait) {
  JobLook after = look(6, 5, kStuck);
  after.status.ranks[1].state = ProcessState::kStopped;
  const Diagnosis found = diagnose(look(6, 5, kStuck), after, 1);
  EXPECT_TRUE(found.stands_still);
  EXPECT_THAT(found.lines,
              ElementsAre("rank 1 of 2 stands still: a signal has stopped it (kill -CONT 11 lets "
                          "it go on)",
                          "waiting in #7 all_reduce: rank 1 never entered it",
                          "rank 1 of 2 is in step 5, the furthest rank in step 6"));
}

TEST(Diagnosis, ReadsOneRecordAProcess) {
  const apps::testing::Folder folder;
  for (int rank = 0; rank < 3; ++rank) {
    folder.write(fmt::format("logs/diagnose-rank-{}.jsonl", rank),
                 fmt::format(R"({{"record":"rank","run":"now","rank":{},"written":1}})"
                             "\n",
                             rank));
  }
  const auto records = [&](int process_of_rank_1, std::int64_t request) {
    JobStatus status;
    status.ranks = {{.rank = 0, .process = 10, .flights_written = 5},
                    {.rank = 1, .process = process_of_rank_1, .flights_written = 5},
                    {.rank = 2, .process = 12, .flights_written = 4}};
    const std::string text = read_flights(folder.path(), status, request);
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(records(11, 5), 2) << "of rank 2 there is only the record of an earlier request";
  EXPECT_EQ(records(11, 4), 3);
  EXPECT_EQ(records(10, 5), 1) << "as threads: that of rank 1 was left by an earlier start";
}

TEST(Diagnosis, AWaitMustLast) {
  const std::string earlier =
      R"({"record":"verdict","group":"world","sequence":6,"text":"#6 all_reduce: x"})"
      "\n";
  // In another operation than before, or in another group.
  const std::string elsewhere =
      R"({"record":"verdict","group":"tp","sequence":7,"text":"#7 all_reduce: rank 1 never entered it"})"
      "\n";
  for (const std::string& before : {earlier, elsewhere, std::string()}) {
    const Diagnosis found = diagnose(look(5, 5, before), look(5, 5, kStuck), 1);
    EXPECT_FALSE(found.stands_still) << before;
    EXPECT_THAT(found.lines,
                ElementsAre("No step was completed in 1.0 s, and no rank waits for another: they "
                            "are training, in step 5 for 3 s."));
  }
  EXPECT_TRUE(diagnose(look(5, 5, kStuck), look(5, 5, kStuck), 1).stands_still);
}

TEST(Diagnosis, OneWaitOfSeveralGroupsIsSaidOnce) {
  const std::string both =
      std::string(kStuck) +
      R"({"record":"verdict","group":"dp","sequence":7,"text":"#7 all_reduce: rank 1 never entered it"})"
      "\n" +
      R"({"record":"verdict","group":"pp","sequence":2,"text":"#2 barrier: x"})"
      "\nnot JSON\n[1]\n";
  EXPECT_THAT(
      diagnose(look(5, 5, both), look(5, 5, both), 1).lines,
      ElementsAre("waiting in #7 all_reduce: rank 1 never entered it", "waiting in #2 barrier: x"));
}

TEST(Diagnosis, ARankThatHasEndedStandsStill) {
  JobLook after = look(5, 5);
  after.status.ranks[0].state = ProcessState::kEnded;
  const Diagnosis found = diagnose(look(4, 4), after, 1);
  EXPECT_TRUE(found.stands_still);
  EXPECT_THAT(found.lines, ElementsAre("rank 0 of 2 has ended"));
}

TEST(Diagnosis, OfARunThatBegins) {
  const Diagnosis found = diagnose(look(0, 0), look(0, 0), 1);
  EXPECT_FALSE(found.stands_still);
  EXPECT_THAT(found.lines, ElementsAre(HasSubstr("have not begun to train")));
}

}  // namespace
}  // namespace shoal::apps::diagnosis_test
