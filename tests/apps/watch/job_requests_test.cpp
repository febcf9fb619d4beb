#include "apps/shoal/watch/job_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/shoal/watch/job_status.h"
#include "shoal/base/clock.h"
#include "tests/error_text.h"

namespace shoal::apps::job_requests_test {
namespace {

using ::testing::HasSubstr;

struct Fixture {
  train::RunLine run;
  std::array<train::RankLine, 3> ranks;
  JobRequests requests{{&run, ranks}, "torchrun"};

  JobStatus status_after(const std::string& word) {
    return parse_job_status(requests.answer(word + "\n").value());
  }
};

TEST(JobRequests, WaitForTheEndOfTheLine) {
  Fixture job;
  EXPECT_FALSE(job.requests.answer(""));
  EXPECT_FALSE(job.requests.answer("statu"));
  EXPECT_FALSE(job.requests.answer("status"));
  const std::string answer = job.requests.answer("status\n").value();
  EXPECT_EQ(answer.back(), '\n');
  EXPECT_EQ(answer.find('\n'), answer.size() - 1) << "one line";
  EXPECT_TRUE(job.requests.answer("status\nand more"));
}

TEST(JobRequests, EachWordAsksItsThing) {
  Fixture job;
  EXPECT_EQ(job.status_after("status").request, 0);
  EXPECT_EQ(job.run.saves_asked + job.run.flights_asked, 0);
  EXPECT_EQ(job.status_after("save").request, 1);
  EXPECT_EQ(job.status_after("save").request, 2);
  EXPECT_EQ(job.run.saves_asked, 2);
  EXPECT_EQ(job.status_after("flights").request, 1);
  EXPECT_EQ(job.run.flights_asked, 1);
  EXPECT_FALSE(job.run.stop_asked);
  EXPECT_FALSE(job.status_after("status").stopping);
  EXPECT_TRUE(job.status_after("stop").stopping);
  EXPECT_TRUE(job.run.stop_asked);
}

TEST(JobRequests, RefuseWhatTheyDoNotKnow) {
  Fixture job;
  for (const std::string& wrong :
       {std::string("stop now\n"), std::string("\n"), std::string("STOP\n"),
        std::string("\0stop\n", 6), std::string("stop\r\n"), std::string("\xff\xfe\n"),
        std::string(500, 'x')}) {
    const auto answer = job.requests.answer(wrong);
    ASSERT_TRUE(answer) << wrong;
    EXPECT_TRUE(nlohmann::json::parse(*answer).contains("error"));
  }
  EXPECT_FALSE(job.run.stop_asked);
  // One byte short of the limit it may go on; a line end behind the limit comes too late.
  EXPECT_FALSE(job.requests.answer(std::string(JobRequests::kLongest - 1, 'x')));
  EXPECT_THAT(job.requests.answer(std::string(JobRequests::kLongest, 'x') + "\n").value(),
              HasSubstr("too long"));
}

TEST(JobStatus, SaysWhatTheBoardSays) {
  Fixture job;
  job.run.phase = train::RunPhase::kEvaluating;
  job.run.first_step = 10;
  job.run.total_steps = 40;
  job.run.saves_answered = 3;
  job.run.saved_step = 12;
  const std::int64_t now = Clock::now().time_since_epoch().count();
  job.run.trained_since_ns = now - 60'000'000'000;
  job.ranks[0].process = ::getpid();
  job.ranks[0].step = 15;
  job.ranks[0].progress_ns = now - 2'000'000'000;
  job.ranks[1].process = ::getpid();
  job.ranks[1].ended = true;
  job.ranks[1].flights_written = 7;
  const JobStatus status = job.status_after("status");
  EXPECT_EQ(status.process, ::getpid());
  EXPECT_EQ(status.launcher, "torchrun");
  EXPECT_EQ(status.phase, "evaluating");
  EXPECT_EQ(status.first_step, 10);
  EXPECT_EQ(status.total_steps, 40);
  EXPECT_EQ(status.saves_answered, 3);
  EXPECT_EQ(status.saved_step, 12);
  EXPECT_GE(status.training_s, 60);
  EXPECT_LT(status.training_s, 600);
  ASSERT_EQ(status.ranks.size(), 3u);
  EXPECT_EQ(status.ranks[0].rank, 0);
  EXPECT_EQ(status.ranks[0].process, ::getpid());
  EXPECT_EQ(status.ranks[0].state, ProcessState::kRunning);
  EXPECT_EQ(status.ranks[0].step, 15);
  EXPECT_GE(status.ranks[0].age_s, 2);
  EXPECT_LT(status.ranks[0].age_s, 600);
  EXPECT_GT(status.ranks[0].resident_bytes, 1 << 20);
  EXPECT_EQ(status.ranks[1].state, ProcessState::kEnded) << "although a process has that number";
  EXPECT_EQ(status.ranks[1].flights_written, 7);
  EXPECT_LT(status.ranks[1].age_s, 0) << "it has not begun";
  EXPECT_EQ(status.ranks[2].rank, 2);
  EXPECT_EQ(status.ranks[2].process, 0);
  EXPECT_EQ(status.ranks[2].state, ProcessState::kUnknown);
}

TEST(JobStatus, RefusesWhatIsNone) {
  const std::string whole = to_json(Fixture().status_after("status"));
  EXPECT_EQ(to_json(parse_job_status(whole)), whole);
  for (const std::string& wrong :
       {std::string(), std::string("[]"), std::string("{}"), std::string("{\"process\": \"x\"}"),
        whole.substr(0, whole.size() / 2), std::string("{\"error\": \"x\"}")}) {
    EXPECT_THAT(error_text([&] { parse_job_status(wrong); }),
                HasSubstr("answers what is no status"))
        << wrong;
  }
}

TEST(ProcessStates, AreReadBehindTheName) {
  EXPECT_EQ(state_in("12 (shoal) S 1 1"), ProcessState::kRunning);
  EXPECT_EQ(state_in("12 (shoal) R 1 1"), ProcessState::kRunning);
  EXPECT_EQ(state_in("12 (shoal) T 1 1"), ProcessState::kStopped);
  EXPECT_EQ(state_in("12 (shoal) t 1 1"), ProcessState::kStopped);
  EXPECT_EQ(state_in("12 (shoal) Z 1 1"), ProcessState::kEnded);
  EXPECT_EQ(state_in("12 (a) T (b) S 1 1"), ProcessState::kRunning);
  EXPECT_EQ(state_in("12 (a) S (b) T 1 1"), ProcessState::kStopped);
  EXPECT_EQ(state_in(""), ProcessState::kUnknown);
  EXPECT_EQ(state_in("12 (x) "), ProcessState::kUnknown);
  EXPECT_EQ(state_of_process(::getpid()), ProcessState::kRunning);
  EXPECT_EQ(state_of_process(-7), ProcessState::kEnded);
  EXPECT_EQ(resident_bytes(-7), 0);
  for (const auto state : {ProcessState::kUnknown, ProcessState::kRunning, ProcessState::kStopped,
                           ProcessState::kEnded})
    EXPECT_EQ(process_state_named(name(state)), state);
}

}  // namespace
}  // namespace shoal::apps::job_requests_test
