#include "shoal/base/span_recorder.h"

#include <cstring>

#include "shoal/base/check.h"

namespace shoal {
namespace {

constexpr std::int64_t kShortestCall = 1000;  // ns

}  // namespace

constinit thread_local SpanRecorder* SpanRecorder::current_ = nullptr;

const char* name(SpanKind kind) {
  switch (kind) {
    case SpanKind::kStep:
      return "step";
    case SpanKind::kData:
      return "data";
    case SpanKind::kForward:
      return "forward";
    case SpanKind::kBackward:
      return "backward";
    case SpanKind::kUnit:
      return "unit";
    case SpanKind::kMatmul:
      return "matmul";
    case SpanKind::kAttention:
      return "attention";
    case SpanKind::kOperator:
      return "operator";
    case SpanKind::kCommunication:
      return "communication";
    case SpanKind::kOptimizer:
      return "optimizer";
    case SpanKind::kCheckpoint:
      return "checkpoint";
    case SpanKind::kEvaluation:
      return "evaluation";
    case SpanKind::kReport:
      return "report";
  }
  return "unknown";
}

SpanRecorder::~SpanRecorder() {
  if (current_ == this) current_ = nullptr;
}

void SpanRecorder::start(std::size_t spans, std::size_t transfers) {
  // Every page is touched now, so that no span waits for one.
  spans_.assign(spans, {});
  transfers_.assign(transfers, {});
  span_count_ = transfer_count_ = 0;
  dropped_ = 0;
  depth_ = 0;
  unit_ = nullptr;
  texts_.clear();
  messages_.clear();
  // Ids of an earlier recording, which operations in flight may hold, name nothing in this one.
  ++recordings_;
  recording_ = true;
}

void SpanRecorder::stop() {
  SHOAL_CHECK(depth_ == 0, "a recording ends inside {} open spans", depth_);
  recording_ = false;
}

std::size_t SpanRecorder::begin(SpanKind kind, const char* name, const char* detail) {
  if (span_count_ == spans_.size() || depth_ == kDeepest) {
    ++dropped_;
    return kNone;
  }
  Span& span = spans_[span_count_];
  span = Span{.name = name, .detail = detail, .kind = kind};
  open_[depth_++] = span_count_;
  span.begin = now();
  return span_count_++;
}

void SpanRecorder::end(std::size_t span) {
  if (span == kNone) return;
  const std::int64_t time = now();
  while (depth_ > 0) {
    const std::size_t inner = open_[--depth_];
    spans_[inner].end = time;
    if (inner == span) return;
  }
}

void SpanRecorder::begin_communication(const char* name, const char* detail) {
  if (communication_depth_++ > 0) return;
  communication_span_ = recording_ ? begin(SpanKind::kCommunication, name, detail) : kNone;
  communication_begin_ = now();
}

void SpanRecorder::end_communication() {
  if (--communication_depth_ > 0) return;
  const std::int64_t took = now() - communication_begin_;
  communication_time_ += took;
  if (communication_span_ == kNone) return;
  end(communication_span_);
  if (took < kShortestCall && communication_span_ + 1 == span_count_) --span_count_;
}

Duration SpanRecorder::take_communication_time() {
  const Duration time(communication_time_);
  communication_time_ = 0;
  return time;
}

SpanRecorder::TransferId SpanRecorder::begin_transfer(Transfer transfer) {
  if (!recording_) return 0;
  const bool message = transfer.source >= 0 || transfer.destination >= 0;
  if (message) {
    // Counted also where the transfer is dropped, so that later messages still match.
    transfer.number =
        messages_[{transfer.group_id, transfer.source, transfer.destination, transfer.tag}]++;
  }
  if (transfer_count_ == transfers_.size()) {
    ++dropped_;
    return 0;
  }
  transfer.begin = now();
  transfer.group = kept(transfer.group);
  transfers_[transfer_count_++] = transfer;
  return (std::uint64_t{recordings_} << 32) | transfer_count_;
}

Transfer* SpanRecorder::find(TransferId id) {
  const std::uint64_t number = id & 0xffffffff;
  if (id >> 32 != recordings_ || number == 0 || number > transfer_count_ || !recording_)
    return nullptr;
  return &transfers_[number - 1];
}

void SpanRecorder::end_transfer(TransferId id) {
  Transfer* transfer = find(id);
  if (transfer && transfer->end == 0) transfer->end = now();
}

void SpanRecorder::add_blocked(TransferId id, Duration time) {
  if (Transfer* transfer = find(id)) transfer->blocked += time.count();
}

const char* SpanRecorder::name_of(TransferId id) const {
  const Transfer* transfer = const_cast<SpanRecorder*>(this)->find(id);
  return transfer ? transfer->name : "";
}

void SpanRecorder::reach_backward(const char* unit) {
  if (depth_ == 0 || !unit) return;
  const Span& inner = spans_[open_[depth_ - 1]];
  const bool in_unit = inner.kind == SpanKind::kUnit;
  if (in_unit && std::strcmp(inner.detail, unit) == 0) return;
  // A unit that backward runs is directly inside a backward span, or takes the place of one there.
  if (in_unit && depth_ > 1 && spans_[open_[depth_ - 2]].kind == SpanKind::kBackward) {
    end(open_[depth_ - 1]);
  } else if (inner.kind != SpanKind::kBackward) {
    return;
  }
  begin(SpanKind::kUnit, "backward", unit);
}

}  // namespace shoal
