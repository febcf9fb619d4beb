#include "shoal/plan/trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <streambuf>

#include "shoal/plan/simulator.h"
#include "shoal/schedule/generators.h"
#include "tests/plan/published.h"

namespace shoal::plan::trace_test {
namespace {

using ::testing::HasSubstr;

/// The same file made of one string, from spans that were kept: the ranks' names, then every span
/// in the order in which it was handed over.
std::string plain_trace(const std::vector<std::pair<int, schedule::Span>>& spans, int ranks) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (int rank = 0; rank < ranks; ++rank) {
    text += fmt::format(
        "{{\"ph\":\"M\",\"pid\":0,\"tid\":{0},\"name\":\"thread_name\",\"args\":{{\"name\":\"rank "
        "{0}\"}}}},\n",
        rank);
  }
  for (const auto& [rank, span] : spans) {
    text += fmt::format(
        "{{\"ph\":\"X\",\"pid\":0,\"tid\":{},\"name\":\"{}\",\"cat\":\"{}\",\"ts\":{:.3f},\"dur\":{"
        ":.3f}}},\n",
        rank, to_string(span.action), schedule::mark(span.action.kind), span.begin * 1e6,
        (span.end - span.begin) * 1e6);
  }
  return text +
         "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"shoal "
         "plan\"}}\n]}\n";
}

/// Takes bytes and forgets them; knows how they came.
class Drain : public std::streambuf {
 public:
  std::size_t bytes = 0;
  std::size_t largest = 0;
  std::size_t pieces = 0;

 protected:
  std::streamsize xsputn(const char*, std::streamsize count) override {
    const auto size = static_cast<std::size_t>(count);
    bytes += size;
    largest = std::max(largest, size);
    ++pieces;
    return count;
  }
  int_type overflow(int_type letter) override {
    const char one = traits_type::to_char_type(letter);
    xsputn(&one, 1);
    return letter;
  }
};

TEST(Trace, IsTheBytesOfTheWholeWrittenAtOnce) {
  for (const std::string& name : schedule::schedule_names()) {
    const int chunks = name == "interleaved" || name == "zb-v" || name == "dualpipe-v" ? 2 : 1;
    const auto table = schedule::make_schedule(name, 4, chunks, 200);  // more than two pieces
    const schedule::Costs costs{{{0.0123, 0.0234, 0.0113, 1, 0}}, 0.001, 0.0005, {1, 1, 1.5, 1}};
    std::vector<std::pair<int, schedule::Span>> spans;
    std::ostringstream streamed;
    TraceWriter writer(streamed, 4);
    schedule::simulate(table, costs, [&](int rank, const schedule::Span& span) {
      writer.add(rank, span);
      spans.emplace_back(rank, span);
    });
    writer.finish();
    EXPECT_GT(streamed.str().size(), 2 * TraceWriter::kChunkBytes) << name;
    EXPECT_EQ(streamed.str(), plain_trace(spans, 4)) << name;
  }
}

// Whoever visits the spans is given those that would have been kept, each rank's in order, and
// nothing else about the step changes.
TEST(Trace, VisitedSpansAreTheKeptOnes) {
  const auto table = schedule::zero_bubble_h1(5, 12);
  const schedule::Costs costs{{schedule::StageCost{}}, 0.1, 0.05, {}};
  const auto kept = schedule::simulate(table, costs);
  std::vector<std::vector<schedule::Span>> visited(5);
  const auto timeline = schedule::simulate(
      table, costs, [&](int rank, const schedule::Span& span) { visited[rank].push_back(span); });
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_TRUE(timeline.ranks[rank].empty());
    ASSERT_EQ(visited[rank].size(), kept.ranks[rank].size());
    for (std::size_t i = 0; i < visited[rank].size(); ++i) {
      EXPECT_EQ(visited[rank][i].action, kept.ranks[rank][i].action);
      EXPECT_EQ(visited[rank][i].begin, kept.ranks[rank][i].begin);
      EXPECT_EQ(visited[rank][i].end, kept.ranks[rank][i].end);
    }
  }
  EXPECT_EQ(timeline.busy, kept.busy);
  EXPECT_EQ(timeline.begin, kept.begin);
  EXPECT_EQ(timeline.end, kept.end);
}

// However long the step: no chunk is larger than it may be, none waits for the end, and no span is
// kept.
TEST(Trace, TakesNoMoreMemoryForALongerStep) {
  const ModelSpec spec = *named_model("gpt3-13b");
  std::size_t bytes = 0;
  for (const std::int64_t batch : {64, 1024}) {
    Training training;
    training.degrees.pp = 8;
    training.global_batch = batch;
    Drain drain;
    std::ostream out(&drain);
    TraceWriter writer(out, 8);
    std::size_t events = 0;
    std::size_t most_waiting = 0;
    std::size_t added = 0;
    const auto step = simulate_step(
        PublishedEstimator(), spec, training, with_devices(*cluster_preset("a100"), 8), {},
        [&](int rank, const schedule::Span& span) {
          writer.add(rank, span);
          ++events;
          added += 70;  // no event is shorter
          most_waiting = std::max(most_waiting, added > drain.bytes ? added - drain.bytes : 0);
        });
    writer.finish();
    EXPECT_GE(events, 2u * 8 * static_cast<std::size_t>(batch));
    EXPECT_GT(drain.bytes, 70 * events);
    EXPECT_LE(drain.largest, TraceWriter::kChunkBytes);
    EXPECT_LE(most_waiting, TraceWriter::kChunkBytes);
    EXPECT_GE(drain.pieces * TraceWriter::kChunkBytes, drain.bytes);
    for (const auto& spans : step.timeline.ranks) EXPECT_TRUE(spans.empty());
    EXPECT_GT(drain.bytes, 8 * bytes) << "else the second step is no longer than the first";
    bytes = drain.bytes;
  }
}

TEST(Trace, DrawingsHoldEveryComputationOnce) {
  const auto timeline =
      schedule::simulate(schedule::zero_bubble_h1(3, 5), {{schedule::StageCost{}}, 0.1, 0, {}});
  const std::string svg = to_svg(timeline, "a < b");
  std::size_t boxes = 0;
  for (std::size_t at = svg.find("<rect x"); at != std::string::npos;
       at = svg.find("<rect x", at + 1))
    ++boxes;
  EXPECT_EQ(boxes, 45u);
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
}

TEST(Trace, HoldsEveryComputationOnce) {
  std::ostringstream out;
  TraceWriter writer(out, 3);
  schedule::simulate(schedule::zero_bubble_h1(3, 5), {{schedule::StageCost{}}, 0.1, 0, {}},
                     [&](int rank, const schedule::Span& span) { writer.add(rank, span); });
  writer.finish();
  const std::string trace = out.str();
  for (int micro = 0; micro < 5; ++micro) {
    for (int stage = 0; stage < 3; ++stage) {
      for (const char* mark : {"F", "I", "W"}) {
        const std::string name = "\"" + std::to_string(stage) + mark + std::to_string(micro) + "\"";
        const auto at = trace.find(name);
        ASSERT_NE(at, std::string::npos) << name;
        EXPECT_EQ(trace.find(name, at + 1), std::string::npos) << name;
      }
    }
  }
}

}  // namespace
}  // namespace shoal::plan::trace_test
