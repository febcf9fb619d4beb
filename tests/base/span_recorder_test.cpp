#include "shoal/base/span_recorder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/span_log.h"

namespace shoal::span_recorder_test {
namespace {

/// "step(data matmul)": names of spans, with those inside in brackets.
std::string tree(const SpanRecorder& recorder) {
  std::string text;
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < recorder.span_count(); ++i) {
    const Span& span = recorder.spans()[i];
    EXPECT_LE(span.begin, span.end) << span.name;
    while (!ends.empty() && ends.back() <= span.begin) {
      text += ")";
      ends.pop_back();
    }
    if (!ends.empty()) {
      EXPECT_LE(span.end, ends.back()) << span.name << " outlasts the span around it";
    }
    text += text.empty() || text.back() == '(' ? "" : " ";
    text += span.detail ? std::string(span.name) + ":" + span.detail : span.name;
    text += "(";
    ends.push_back(span.end);
  }
  for (std::size_t i = 0; i < ends.size(); ++i) text += ")";
  for (std::size_t at; (at = text.find("()")) != std::string::npos;) text.erase(at, 2);
  return text;
}

/// So that no two times are equal.
void pass_time() {
  const auto begin = Clock::now();
  while (Clock::now() - begin < std::chrono::microseconds(2)) {
  }
}

void leaf(SpanKind kind, const char* name) {
  const ScopedSpan span(kind, name);
  pass_time();
}

TEST(SpanRecorder, RecordsNestedSpansOfItsThreadWhileItRecords) {
  {
    const ScopedSpan before(SpanKind::kStep, "nobody");
    EXPECT_FALSE(before.recorded());
  }
  SpanRecorder recorder;
  recorder.install();
  leaf(SpanKind::kStep, "not yet");
  recorder.start();
  {
    const ScopedSpan step(SpanKind::kStep, "step");
    step.at(7, 8, 9);
    pass_time();
    leaf(SpanKind::kData, "data");
    const ScopedSpan matmul(SpanKind::kMatmul, "matmul", "backward");
    matmul.work(100, 20);
    pass_time();
    std::thread([] { leaf(SpanKind::kData, "elsewhere"); }).join();
    leaf(SpanKind::kOperator, "inside");
  }
  recorder.stop();
  leaf(SpanKind::kStep, "too late");
  EXPECT_EQ(tree(recorder), "step(data matmul:backward(inside))");
  EXPECT_EQ(recorder.spans()[0].at, (std::array<std::int32_t, 3>{7, 8, 9}));
  EXPECT_EQ(recorder.spans()[2].flops, 100);
  EXPECT_EQ(recorder.spans()[2].bytes, 20);
  EXPECT_EQ(recorder.dropped(), 0u);
}

TEST(SpanRecorder, CountsWhatFindsNoRoom) {
  SpanRecorder recorder;
  recorder.install();
  recorder.start(3, 1);
  for (int i = 0; i < 5; ++i) leaf(SpanKind::kOperator, "one");
  recorder.begin_transfer({.name = "send", .group = "world"});
  EXPECT_EQ(recorder.begin_transfer({.name = "send", .group = "world"}), 0u);
  EXPECT_EQ(recorder.span_count(), 3u);
  EXPECT_EQ(recorder.transfer_count(), 1u);
  EXPECT_EQ(recorder.dropped(), 3u);
  // Another recording begins anew.
  recorder.stop();
  recorder.start(3, 1);
  EXPECT_EQ(recorder.dropped(), 0u);
  EXPECT_EQ(recorder.span_count(), 0u);
}

TEST(SpanRecorder, DropsWhatLiesTooDeep) {
  SpanRecorder recorder;
  recorder.install();
  recorder.start();
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < SpanRecorder::kDeepest + 2; ++i)
    open.push_back(recorder.begin(SpanKind::kOperator, "deep", nullptr));
  for (; !open.empty(); open.pop_back()) recorder.end(open.back());
  EXPECT_EQ(recorder.span_count(), SpanRecorder::kDeepest);
  EXPECT_EQ(recorder.dropped(), 2u);
  recorder.stop();
}

TEST(SpanRecorder, ShowsTheUnitsThatBackwardReaches) {
  SpanRecorder recorder;
  recorder.install();
  recorder.start();
  {
    const ScopedUnit unit("blocks.0");
    EXPECT_STREQ(recorder.unit(), "blocks.0");
    pass_time();
  }
  EXPECT_EQ(recorder.unit(), nullptr);
  {
    const ScopedSpan backward(SpanKind::kBackward, "backward");
    for (const char* unit : {"head", "blocks.1", "blocks.1"}) {
      pass_time();
      recorder.reach_backward(unit);
      const ScopedSpan op(SpanKind::kOperator, "op");
      pass_time();
      // Inside an operator (a recomputed block) nothing ends.
      recorder.reach_backward("blocks.0");
    }
    pass_time();
  }
  pass_time();
  // Without a backward pass around it there is no unit, nor inside a forward pass.
  recorder.reach_backward("head");
  {
    const ScopedUnit unit("blocks.0");
    pass_time();
    recorder.reach_backward("head");
  }
  pass_time();
  recorder.stop();
  EXPECT_EQ(tree(recorder),
            "forward:blocks.0 backward(backward:head(op) backward:blocks.1(op op)) "
            "forward:blocks.0");
}

TEST(SpanRecorder, NumbersMessagesByTheirEndsAndTag) {
  SpanRecorder recorder;
  recorder.install();
  recorder.start();
  const auto number_of = [&](int source, int destination, std::uint32_t tag, std::uint64_t group) {
    Transfer message{.name = "send", .group = "pp"};
    message.group_id = group;
    message.tag = tag;
    message.source = source;
    message.destination = destination;
    recorder.begin_transfer(message);
    return recorder.transfers()[recorder.transfer_count() - 1].number;
  };
  EXPECT_EQ(number_of(0, 1, 5, 1), 0u);
  EXPECT_EQ(number_of(0, 1, 5, 1), 1u);
  EXPECT_EQ(number_of(1, 0, 5, 1), 0u);
  EXPECT_EQ(number_of(0, 1, 6, 1), 0u);
  EXPECT_EQ(number_of(0, 1, 5, 2), 0u);
  EXPECT_EQ(number_of(0, 1, 5, 1), 2u);
  // A transfer of which one end is known is a message, too.
  for (const std::uint64_t number : {0, 1}) {
    EXPECT_EQ(number_of(0, -1, 5, 1), number);
    EXPECT_EQ(number_of(-1, 0, 5, 1), number);
    EXPECT_EQ(number_of(-1, -1, 5, 1), 0u);
  }
}

TEST(SpanRecorder, AnotherRecordingForgetsWhatWasOpen) {
  SpanRecorder recorder;
  EXPECT_EQ(recorder.begin_transfer({.name = "send", .group = "world"}), 0u);
  recorder.start();
  const std::size_t open = recorder.begin(SpanKind::kOperator, "open", nullptr);
  recorder.set_unit("head");
  recorder.start();
  EXPECT_EQ(recorder.unit(), nullptr);
  EXPECT_NO_THROW(recorder.stop()) << "no span of this recording is open";
  recorder.start();
  recorder.end(open);
  const auto before = Clock::now().time_since_epoch().count();
  std::string group = "world";
  Transfer message{.name = "send", .group = group.c_str()};
  message.source = 3;
  recorder.begin_transfer(message);
  group = "gone!";
  EXPECT_GE(recorder.transfers()[0].begin, before);
  EXPECT_STREQ(recorder.transfers()[0].group, "world");
  EXPECT_NO_THROW(recorder.stop());
  recorder.start();
  recorder.begin_transfer(message);
  EXPECT_EQ(recorder.transfers()[0].number, 0u) << "messages are counted anew";
}

TEST(SpanRecorder, IsTheOneOfItsThreadUntilItIsDestroyed) {
  {
    SpanRecorder recorder;
    recorder.install();
    { const SpanRecorder other; }
    EXPECT_EQ(SpanRecorder::current(), &recorder);
  }
  EXPECT_EQ(SpanRecorder::current(), nullptr);
}

TEST(SpanRecorder, NestedCommunicationIsOneSpan) {
  SpanRecorder recorder;
  recorder.install();
  recorder.start();
  {
    const ScopedCommunication outer("wait");
    pass_time();
    const ScopedCommunication inner("poll");
    pass_time();
  }
  recorder.stop();
  EXPECT_EQ(tree(recorder), "wait");
}

TEST(SpanRecorder, ATransferEndsOnceAndOnlyInItsOwnRecording) {
  SpanRecorder recorder;
  recorder.install();
  recorder.start();
  const auto first = recorder.begin_transfer({.name = "all_reduce", .group = "dp"});
  EXPECT_STREQ(recorder.name_of(first), "all_reduce");
  recorder.add_blocked(first, std::chrono::microseconds(3));
  recorder.end_transfer(first);
  const std::int64_t end = recorder.transfers()[0].end;
  EXPECT_GE(end, recorder.transfers()[0].begin);
  pass_time();
  recorder.end_transfer(first);
  EXPECT_EQ(recorder.transfers()[0].end, end);
  EXPECT_EQ(recorder.transfers()[0].blocked, 3000);
  recorder.end_transfer(0);
  recorder.stop();
  EXPECT_STREQ(recorder.name_of(first), "");
  recorder.start();
  recorder.begin_transfer({.name = "barrier", .group = "dp"});
  recorder.end_transfer(first);
  EXPECT_EQ(recorder.transfers()[0].end, 0);
  EXPECT_STREQ(recorder.name_of(first), "");
}

TEST(SpanRecorder, MeasuresCommunicationAlsoWhereItDoesNotRecord) {
  SpanRecorder recorder;
  recorder.install();
  const auto begin = Clock::now();
  {
    const ScopedCommunication outer("wait");
    const ScopedCommunication inner("poll");  // counts once
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Duration all = Clock::now() - begin;
  const Duration measured = recorder.take_communication_time();
  EXPECT_GE(measured, std::chrono::milliseconds(5));
  EXPECT_LE(measured, all);
  EXPECT_EQ(recorder.take_communication_time(), Duration::zero());
  EXPECT_EQ(recorder.span_count(), 0u);
}

TEST(SpanRecorder, ShortCallsOfCommunicationLeaveNoSpan) {
  SpanRecorder recorder;
  recorder.install();
  recorder.start();
  // Some of a hundred empty calls take less than a microsecond, whatever the machine does.
  for (int i = 0; i < 100; ++i) const ScopedCommunication poll("poll");
  EXPECT_LT(recorder.span_count(), 100u);
  const std::size_t before = recorder.span_count();
  {
    const ScopedCommunication wait("wait", "all_reduce");
    pass_time();
  }
  ASSERT_EQ(recorder.span_count(), before + 1);
  EXPECT_STREQ(recorder.spans()[before].detail, "all_reduce");
}

TEST(SpanLog, BringsARecordingToAnotherProcess) {
  SpanLog log;
  {
    SpanRecorder recorder;
    recorder.install();
    recorder.start(2, 4);
    std::string unit = "blocks.3";
    const std::string group = "dp_shard";
    for (int i = 0; i < 3; ++i) {
      const ScopedSpan span(SpanKind::kUnit, "forward", unit.c_str());
      span.work(1e9, 12);
    }
    recorder.begin_transfer({.name = "all_gather", .group = group.c_str(), .bytes = 400});
    const auto bytes = pack(recorder);
    recorder.stop();
    // What the spans point to is gone.
    unit = "gone";
    log = SpanLog::unpack(bytes);
    for (const std::size_t cut : {std::size_t{1}, sizeof(Transfer), bytes.size() - 8}) {
      EXPECT_THROW(SpanLog::unpack(std::span(bytes).first(bytes.size() - cut)), Error);
    }
    auto longer = bytes;
    longer.push_back({});
    EXPECT_THROW(SpanLog::unpack(longer), Error);
  }
  EXPECT_EQ(log.dropped, 1u);
  ASSERT_EQ(log.spans.size(), 2u);
  EXPECT_STREQ(log.spans[1].name, "forward");
  EXPECT_STREQ(log.spans[1].detail, "blocks.3");
  EXPECT_EQ(log.spans[1].kind, SpanKind::kUnit);
  EXPECT_EQ(log.spans[1].flops, 1e9);
  ASSERT_EQ(log.transfers.size(), 1u);
  EXPECT_STREQ(log.transfers[0].name, "all_gather");
  EXPECT_STREQ(log.transfers[0].group, "dp_shard");
  EXPECT_EQ(log.transfers[0].bytes, 400u);
}

}  // namespace
}  // namespace shoal::span_recorder_test
