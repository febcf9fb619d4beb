#include "shoal/train/config/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/train/config/trace_file.h"

namespace shoal::train::profile_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Times are microseconds here.
Span span(SpanKind kind, const char* name, std::int64_t begin, std::int64_t end,
          const char* detail = nullptr, double flops = 0, double bytes = 0) {
  return {.name = name,
          .detail = detail,
          .begin = 1000 * begin,
          .end = 1000 * end,
          .flops = flops,
          .bytes = bytes,
          .kind = kind};
}

Transfer collective(const char* name, std::int64_t begin, std::int64_t end, std::uint64_t number) {
  Transfer transfer{.name = name, .group = "dp", .begin = 1000 * begin, .end = 1000 * end};
  transfer.group_id = 77;
  transfer.number = number;
  transfer.ranks = 2;
  transfer.bytes = 64;
  return transfer;
}

/// A step of 100 us on rank 0: 10 data, 40 forward (of which 30 matmul, 5 a norm), 30 backward, of
/// which 20 wait, and 18 update; 2 lie in no span. Then a report and an evaluation.
SpanLog rank_0() {
  SpanLog log;
  log.spans = {span(SpanKind::kStep, "step", 1000, 1100),
               span(SpanKind::kData, "data", 1000, 1010),
               span(SpanKind::kForward, "forward", 1010, 1050),
               span(SpanKind::kUnit, "forward", 1011, 1049, "blocks.0"),
               span(SpanKind::kMatmul, "matmul", 1012, 1042, nullptr, 6e6, 100),
               span(SpanKind::kOperator, "norm", 1043, 1048, nullptr, 0, 5e4),
               span(SpanKind::kBackward, "backward", 1050, 1080),
               span(SpanKind::kCommunication, "wait", 1055, 1075, "all_reduce"),
               span(SpanKind::kOptimizer, "update", 1082, 1100, nullptr, 0, 9e4),
               span(SpanKind::kReport, "report", 1101, 1104),
               span(SpanKind::kEvaluation, "evaluation", 1110, 1150),
               span(SpanKind::kUnit, "forward", 1112, 1148, "blocks.0")};
  log.transfers = {collective("all_reduce", 1040, 1075, 5), collective("barrier", 1060, 1062, 6)};
  return log;
}

TraceHead head() {
  return {.job = "a \"job\"",
          .first_step = 3,
          .last_step = 3,
          .threads = 2,
          .precision = "fp32",
          .clock_error_us = 1.5,
          .peak_flops = {4e11, 4e11},
          .peak_bytes = {2e10, 2e10}};
}

std::map<std::string, double> micro(const std::vector<ProfileRow>& rows) {
  std::map<std::string, double> found;
  for (const ProfileRow& row : rows) found[row.name] = row.seconds * 1e6;
  return found;
}

TEST(Profile, EveryNanosecondOfAStepCountsInOneRow) {
  std::vector<SpanLog> logs;
  logs.push_back(rank_0());
  const Profile profile = profile_of(trace_json(head(), logs));
  EXPECT_EQ(profile.ranks, 1);
  EXPECT_EQ(profile.steps, 1);
  EXPECT_NEAR(profile.step_s * 1e6, 100, 1e-6);
  const auto rows = micro(profile.rows);
  EXPECT_EQ(rows.size(), 6u);
  EXPECT_NEAR(rows.at("data wait"), 10, 1e-6);
  EXPECT_NEAR(rows.at("matmul"), 30, 1e-6);
  EXPECT_NEAR(rows.at("norm"), 5, 1e-6);
  EXPECT_NEAR(rows.at("communication, exposed"), 20, 1e-6);
  EXPECT_NEAR(rows.at("optimizer"), 18, 1e-6);
  EXPECT_NEAR(rows.at("autograd and glue between operators"), 15, 1e-6);
  EXPECT_NEAR(profile.uncovered_s * 1e6, 2, 1e-6);
  EXPECT_NEAR(profile.rows_s() + profile.uncovered_s, profile.step_s, 1e-12);
  // In flight from 1040 to 1075, of which the rank waited from 1055.
  EXPECT_NEAR(profile.in_flight_s * 1e6, 35, 1e-6);
  EXPECT_NEAR(profile.hidden_s * 1e6, 15, 1e-6);
  EXPECT_NEAR(micro(profile.outside).at("evaluation"), 40, 1e-6);
  EXPECT_NEAR(micro(profile.outside).at("report"), 3, 1e-6);
  // The unit of the step alone, not that of the evaluation.
  EXPECT_NEAR(micro(profile.units).at("forward blocks.0"), 38, 1e-6);
  EXPECT_EQ(profile.rows[0].name, "matmul");
  EXPECT_EQ(profile.rows[0].flops, 6e6);
  const std::string text = describe(profile, true);
  // 6e6 FLOPs in 30 us are 200 GFLOP/s; 9e4 bytes in 18 us are 5 GB/s.
  EXPECT_THAT(text, HasSubstr("200 GFLOP/s, 50 % of 400"));
  EXPECT_THAT(text, HasSubstr("5 GB/s, 25 % of 20"));
  EXPECT_THAT(text, HasSubstr("forward blocks.0"));
  const auto json = nlohmann::json::parse(to_json(profile));
  EXPECT_NEAR(json.at("uncovered_s").get<double>(), 2e-6, 1e-15);
}

TEST(Profile, IsTheMeanOverRanksAndSteps) {
  std::vector<SpanLog> logs;
  logs.push_back(rank_0());
  logs.emplace_back();
  logs[1].spans = {span(SpanKind::kStep, "step", 1000, 1040),
                   span(SpanKind::kMatmul, "matmul", 1010, 1030, nullptr, 1e6)};
  logs[1].dropped = 3;
  const Profile profile = profile_of(trace_json(head(), logs));
  EXPECT_EQ(profile.ranks, 2);
  EXPECT_EQ(profile.steps, 1);
  EXPECT_NEAR(profile.step_s * 1e6, 70, 1e-6);
  EXPECT_NEAR(micro(profile.rows).at("matmul"), 25, 1e-6);
  EXPECT_NEAR(profile.uncovered_s * 1e6, (2 + 20) / 2.0, 1e-6);
  EXPECT_THAT(describe(profile, false), HasSubstr("3 spans found no room"));
}

// Two steps with a gap between them: an operation goes on through it, and the rank waits on either
// side.
TEST(Profile, OperationsInFlightCountInTheStepsAlone) {
  std::vector<SpanLog> logs(1);
  logs[0].spans = {
      span(SpanKind::kStep, "step", 1000, 1100), span(SpanKind::kCommunication, "wait", 1090, 1100),
      span(SpanKind::kStep, "step", 1150, 1250), span(SpanKind::kCommunication, "wait", 1150, 1160),
      span(SpanKind::kOperator, "linear backward", 1200, 1206)};
  logs[0].transfers = {collective("all_reduce", 1050, 1200, 5),
                       collective("barrier", 1190, 1210, 6), collective("barrier", 1210, 1220, 7)};
  const Profile profile = profile_of(trace_json(head(), logs));
  EXPECT_EQ(profile.steps, 2);
  EXPECT_NEAR(profile.step_s * 1e6, 100, 1e-6);
  EXPECT_NEAR(profile.in_flight_s * 1e6, (50 + 70) / 2.0, 1e-6);
  EXPECT_NEAR(profile.hidden_s * 1e6, (40 + 60) / 2.0, 1e-6);
  EXPECT_NEAR(micro(profile.rows).at("communication, exposed"), 10, 1e-6);
  EXPECT_NEAR(micro(profile.rows).at("linear: bias, residual, conversion"), 3, 1e-6);
  EXPECT_NEAR(profile.uncovered_s * 1e6, 87, 1e-6);
}

// The page that people read, to the letter: rows by their time, each with its share of the step.
TEST(Profile, IsPrintedAsATable) {
  std::vector<SpanLog> logs;
  logs.push_back(rank_0());
  Profile profile = profile_of(trace_json(head(), logs));
  const std::string table =
      "Steps 3 to 3 on 1 rank of 2 threads: 0.100 ms a step (means over ranks and steps).\n"
      "\n"
      "                                       ms a step     share   rate\n"
      "matmul                                     0.030    30.0 %   200 GFLOP/s, 50 % of 400\n"
      "communication, exposed                     0.020    20.0 %\n"
      "optimizer                                  0.018    18.0 %   5 GB/s, 25 % of 20\n"
      "autograd and glue between operators        0.015    15.0 %\n"
      "data wait                                  0.010    10.0 %\n"
      "norm                                       0.005     5.0 %   10 GB/s, 50 % of 20\n"
      "in no span                                 0.002     2.0 %\n"
      "sum                                        0.100   100.0 %\n";
  const std::string between =
      "\nBetween the steps, in ms for each step: evaluation 0.040, report 0.003.\n";
  const std::string units =
      "\n"
      "with all that lies inside              ms a step     share\n"
      "forward blocks.0                           0.038    38.0 %\n";
  const std::string peaks =
      "\nPeaks are those of plain loops on all ranks at once, for each rank: 400 GFLOP/s of "
      "float32 "
      "multiply-adds, 20 GB/s of y = y + 3 x in memory.\n";
  EXPECT_EQ(describe(profile, true), table + between + units + peaks);
  EXPECT_EQ(describe(profile, false), table + between + peaks);
  profile.peak_bytes_per_s = 4e9;
  EXPECT_THAT(describe(profile, false), HasSubstr("5 GB/s, from the cache (memory gives 4)\n"));
  profile.ranks = 2;
  profile.threads = 1;
  profile.peak_flops = 0;
  const std::string two = describe(profile, false);
  EXPECT_THAT(two, HasSubstr("Steps 3 to 3 on 2 ranks of 1 thread: "));
  EXPECT_THAT(two, HasSubstr("200 GFLOP/s\n"));
  // In flight 35 us, of which the rank waited 20.
  EXPECT_THAT(two, HasSubstr("\nOperations between ranks were in flight for 0.035 ms a step; in 43 "
                             "% of that time the rank computed.\n"));
  EXPECT_THAT(two, Not(HasSubstr("Peaks are")));
}

// Scripts read it: the keys are a contract.
TEST(Profile, HasItsFiguresUnderTheirNames) {
  Profile profile;
  profile.first_step = 3;
  profile.last_step = 4;
  profile.ranks = 5;
  profile.threads = 6;
  profile.step_s = 7;
  profile.rows = {{"a", 8, 9, 10}};
  profile.uncovered_s = 11;
  profile.in_flight_s = 12;
  profile.hidden_s = 13;
  profile.outside = {{"b", 14, 15, 16}};
  profile.units = {{"c", 17, 18, 19}};
  profile.peak_flops = 20;
  profile.peak_bytes_per_s = 21;
  profile.clock_error_us = 22;
  profile.dropped = 23;
  EXPECT_EQ(nlohmann::json::parse(to_json(profile)), nlohmann::json::parse(R"({
      "first_step": 3, "last_step": 4, "ranks": 5, "threads": 6, "step_s": 7.0,
      "rows": [{"name": "a", "seconds": 8.0, "flops": 9.0, "bytes": 10.0}],
      "uncovered_s": 11.0, "in_flight_s": 12.0, "hidden_s": 13.0,
      "outside": [{"name": "b", "seconds": 14.0, "flops": 15.0, "bytes": 16.0}],
      "units": [{"name": "c", "seconds": 17.0, "flops": 18.0, "bytes": 19.0}],
      "peak_flops": 20.0, "peak_bytes_per_s": 21.0, "clock_error_us": 22.0, "dropped": 23})"));
}

TEST(Profile, RefusesWhatIsNoTraceOfARun) {
  for (const char* text : {"", "{}", "[1]", R"({"otherData":{"program":"another"}})"})
    EXPECT_THROW(profile_of(text), Error) << text;
}

TEST(TraceFile, JoinsWhatMatchesInTheOrderOfStarts) {
  std::vector<SpanLog> logs(3);
  const auto message = [](const char* name, std::int64_t begin, std::int64_t end) {
    Transfer transfer = collective(name, begin, end, 0);
    transfer.source = 2;
    transfer.destination = 1;
    transfer.tag = 9;
    return transfer;
  };
  logs[0].transfers = {collective("all_reduce", 30, 60, 5)};
  // The receive was posted before the message was sent; another number matches nothing.
  logs[1].transfers = {collective("all_reduce", 10, 60, 5), message("recv", 15, 80),
                       collective("all_reduce", 70, 90, 6)};
  logs[2].transfers = {collective("all_reduce", 20, 61, 5), message("send", 40, 70)};
  const auto events = nlohmann::json::parse(trace_json(head(), logs)).at("traceEvents");
  std::map<int, std::vector<nlohmann::json>> flows;
  for (const auto& event : events)
    if (event.contains("id")) flows[event.at("id")].push_back(event);
  ASSERT_EQ(flows.size(), 2u);
  std::map<std::size_t, std::vector<nlohmann::json>> by_size;
  for (const auto& [id, list] : flows) by_size[list.size()] = list;
  // Ranks 1, 2, 0, at their starts; times count from the first.
  const auto& all = by_size.at(3);
  const char* kinds[] = {"s", "t", "f"};
  const int ranks[] = {1, 2, 0};
  const double times[] = {0, 10, 20};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i].at("ph"), kinds[i]);
    EXPECT_EQ(all[i].at("pid"), ranks[i]);
    EXPECT_EQ(all[i].at("ts"), times[i]);
  }
  const auto& one = by_size.at(2);
  EXPECT_EQ(one[0].at("pid"), 2);
  EXPECT_EQ(one[0].at("ts"), 30);
  EXPECT_EQ(one[1].at("pid"), 1);
  EXPECT_EQ(one[1].at("ts"), 30);
  EXPECT_EQ(one[1].at("bp"), "e");
}

TEST(TraceFile, OperationsInFlightTogetherHaveThreadsOfTheirOwn) {
  std::vector<SpanLog> logs(1);
  logs[0].spans = {span(SpanKind::kStep, "step", 0, 100)};
  logs[0].transfers = {collective("all_reduce", 10, 30, 1), collective("all_gather", 20, 40, 2),
                       collective("barrier", 30, 35, 3), collective("barrier", 50, 60, 4)};
  // This one was not complete: it ends with the last span.
  logs[0].transfers[3].end = 0;
  const auto events = nlohmann::json::parse(trace_json(head(), logs)).at("traceEvents");
  std::vector<int> threads;
  for (const auto& event : events) {
    if (event.at("ph") != "X" || event.at("cat") != "transfer") continue;
    threads.push_back(event.at("tid"));
    if (event.at("args").at("number") == 4) {
      EXPECT_EQ(event.at("dur"), 50);
      EXPECT_TRUE(event.at("args").at("unfinished").get<bool>());
    }
  }
  ASSERT_FALSE(threads.empty());
  const int first = threads[0];
  EXPECT_EQ(threads, (std::vector<int>{first, first + 1, first, first}));
}

// What Perfetto gets, to the letter. The first event of all is a message of rank 1; nanoseconds are
// thousandths of the unit.
TEST(TraceFile, HasEveryEventAsPerfettoKnowsIt) {
  std::vector<SpanLog> logs(2);
  Span step = span(SpanKind::kStep, "step", 2, 9);
  step.begin += 1;
  step.at = {12, 0, 0};
  Span forward = span(SpanKind::kForward, "forward", 3, 6);
  forward.at = {1, 2, 0};
  Span matmul = span(SpanKind::kMatmul, "matmul", 4, 5, "qkv", 48);
  matmul.at = {2, 3, 4};
  const Span backward = span(SpanKind::kBackward, "backward", 6, 7);
  const Span norm = span(SpanKind::kOperator, "norm", 7, 8, nullptr, 2, 64);
  logs[0].spans = {step, forward, matmul, backward, norm};
  Transfer message = collective("send", 1, 3, 3);
  message.group = "pp";
  message.group_id = 0xab;
  message.blocked = 2700;  // noticed a moment after the end
  message.source = 0;
  message.destination = 1;
  message.tag = 9;
  logs[1].transfers = {message};
  logs[1].dropped = 2;
  const std::string text = trace_json(head(), logs);
  const std::string events =
      R"("traceEvents":[
{"ph":"M","pid":0,"name":"process_name","args":{"name":"rank 0"}},
{"ph":"M","pid":0,"name":"process_sort_index","args":{"sort_index":0}},
{"ph":"M","pid":0,"tid":100000,"name":"thread_name","args":{"name":"training"}},
{"ph":"M","pid":0,"tid":100000,"name":"thread_sort_index","args":{"sort_index":0}},
{"ph":"X","pid":0,"tid":100000,"cat":"step","name":"step","ts":1.001,"dur":6.999,"args":{"step":12}},
{"ph":"X","pid":0,"tid":100000,"cat":"forward","name":"forward","ts":2.000,"dur":3.000,"args":{"micro_batch":1,"stage":2}},
{"ph":"X","pid":0,"tid":100000,"cat":"matmul","name":"matmul qkv","ts":3.000,"dur":1.000,"args":{"m":2,"n":3,"k":4,"flops":48}},
{"ph":"X","pid":0,"tid":100000,"cat":"backward","name":"backward","ts":5.000,"dur":1.000},
{"ph":"X","pid":0,"tid":100000,"cat":"operator","name":"norm","ts":6.000,"dur":1.000,"args":{"flops":2,"bytes":64}},
{"ph":"M","pid":1,"name":"process_name","args":{"name":"rank 1"}},
{"ph":"M","pid":1,"name":"process_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":1,"tid":200000,"name":"thread_name","args":{"name":"training"}},
{"ph":"M","pid":1,"tid":200000,"name":"thread_sort_index","args":{"sort_index":0}},
{"ph":"M","pid":1,"tid":200001,"name":"thread_name","args":{"name":"communication 1"}},
{"ph":"M","pid":1,"tid":200001,"name":"thread_sort_index","args":{"sort_index":1}},
{"ph":"X","pid":1,"tid":200001,"cat":"transfer","name":"send","ts":0.000,"dur":2.000,"args":{"group":"pp","group_id":"ab","ranks":2,"number":3,"bytes":64,"blocked_us":2.000,"source":0,"destination":1,"tag":9}}
]}
)";
  EXPECT_EQ(text.substr(text.find("\"traceEvents\"")), events);
  const auto document = nlohmann::json::parse(text);
  EXPECT_EQ(document.at("displayTimeUnit"), "ms");
  EXPECT_EQ(document.at("otherData"), nlohmann::json::parse(R"({
      "program": "shoal train", "job": "a \"job\"", "first_step": 3, "last_step": 3, "ranks": 2,
      "threads": 2, "precision": "fp32", "clock_error_us": 1.5, "dropped": 2,
      "peak_flops": [4e11, 4e11], "peak_bytes_per_s": [2e10, 2e10]})"));
  // A recording without events has no first one.
  EXPECT_TRUE(nlohmann::json::accept(trace_json(head(), {})));
}

}  // namespace
}  // namespace shoal::train::profile_test
