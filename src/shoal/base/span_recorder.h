#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/span.h"

namespace shoal {

/// Records what one thread does and when, in memory that is taken when a recording begins. A
/// recording that is full counts what it drops. A place that opens a span while nothing records
/// reads one thread-local pointer.
///
/// Also without recording it measures the time that the thread spends in communication. Threads:
/// only the one that it is installed on.
class SpanRecorder {
 public:
  /// Spans and transfers that a recording holds: 17 and 5 MB.
  static constexpr std::size_t kSpans = std::size_t{1} << 18;
  static constexpr std::size_t kTransfers = std::size_t{1} << 16;
  /// Spans that are open at a time; deeper ones are dropped.
  static constexpr std::size_t kDeepest = 64;

  SpanRecorder() = default;
  ~SpanRecorder();
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;

  /// Returns the recorder of this thread; null: there is none.
  static SpanRecorder* current() { return current_; }
  /// Returns the recorder of this thread while it records, else null.
  static SpanRecorder* recording() {
    SpanRecorder* recorder = current_;
    return recorder && recorder->recording_ ? recorder : nullptr;
  }
  /// Makes this the recorder of the calling thread, until it is destroyed.
  void install() { current_ = this; }

  /// Begins a recording and forgets the one before.
  void start(std::size_t spans = kSpans, std::size_t transfers = kTransfers);
  /// Ends the recording. No span may be open.
  void stop();

  /// Opens a span inside those that are open; kNone when it is dropped.
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t begin(SpanKind kind, const char* name, const char* detail);
  /// Closes the span, and those that are open inside it.
  void end(std::size_t span);
  /// Returns the span while it is open.
  Span& span(std::size_t span) { return spans_[span]; }

  /// Communication may nest; the time of the outermost counts. Calls of less than a microsecond
  /// leave no span: a rank polls often.
  void begin_communication(const char* name, const char* detail);
  void end_communication();
  /// Returns the time that this thread has spent in communication since it was asked last.
  Duration take_communication_time();

  /// Names a transfer of this recording; a later recording ignores it. 0 names none.
  using TransferId = std::uint64_t;
  /// Records the start of `transfer`, of which `begin` is filled in, and of a message `number`. A
  /// `group` is copied.
  TransferId begin_transfer(Transfer transfer);
  /// Notes that the transfer is complete. Only the first call counts.
  void end_transfer(TransferId transfer);
  void add_blocked(TransferId transfer, Duration time);
  /// Returns what begin_transfer was told; "" for one of another recording.
  const char* name_of(TransferId transfer) const;

  /// The unit of the model that runs forward on this thread; null: none.
  const char* unit() const { return unit_; }
  void set_unit(const char* unit) { unit_ = unit; }
  /// Says that backward has reached an operator of `unit`: the span of the unit before ends, and
  /// one of this begins. Does nothing where backward runs inside an operator (recomputation).
  void reach_backward(const char* unit);

  std::size_t span_count() const { return span_count_; }
  std::size_t transfer_count() const { return transfer_count_; }
  std::uint64_t dropped() const { return dropped_; }
  const Span* spans() const { return spans_.data(); }
  const Transfer* transfers() const { return transfers_.data(); }

 private:
  static std::int64_t now() { return Clock::now().time_since_epoch().count(); }
  Transfer* find(TransferId id);
  const char* kept(std::string_view text) { return texts_.emplace(text).first->c_str(); }

  static constinit thread_local SpanRecorder* current_;

  bool recording_ = false;
  std::vector<Span> spans_;
  std::vector<Transfer> transfers_;
  std::size_t span_count_ = 0;
  std::size_t transfer_count_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint32_t recordings_ = 0;
  std::size_t open_[kDeepest] = {};
  std::size_t depth_ = 0;
  const char* unit_ = nullptr;
  std::set<std::string, std::less<>> texts_;
  /// Messages so far by group, sender, receiver and tag.
  std::map<std::tuple<std::uint64_t, std::int32_t, std::int32_t, std::uint32_t>, std::uint64_t>
      messages_;

  int communication_depth_ = 0;
  std::int64_t communication_begin_ = 0;
  std::int64_t communication_time_ = 0;
  std::size_t communication_span_ = kNone;
};

/// A span of this thread while it lives, where the thread records.
class ScopedSpan {
 public:
  /// The texts live until the recording is packed.
  ScopedSpan(SpanKind kind, const char* name, const char* detail = nullptr)
      : recorder_(SpanRecorder::recording()) {
    if (recorder_) span_ = recorder_->begin(kind, name, detail);
  }
  ~ScopedSpan() {
    if (recorder_) recorder_->end(span_);
  }
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

  /// Returns true where the span is recorded: only then is it worth counting its work.
  bool recorded() const { return recorder_ && span_ != SpanRecorder::kNone; }
  /// Says what the span computes and moves. Does nothing where it is not recorded.
  void work(double flops, double bytes) const {
    if (!recorded()) return;
    Span& span = recorder_->span(span_);
    span.flops = flops;
    span.bytes = bytes;
  }
  void at(std::int64_t first, std::int64_t second = 0, std::int64_t third = 0) const {
    if (!recorded()) return;
    recorder_->span(span_).at = {static_cast<std::int32_t>(first),
                                 static_cast<std::int32_t>(second),
                                 static_cast<std::int32_t>(third)};
  }

 private:
  SpanRecorder* recorder_;
  std::size_t span_ = SpanRecorder::kNone;
};

/// Time of this thread in communication, while it lives. It is measured wherever a recorder is
/// installed, and a span where it records.
class ScopedCommunication {
 public:
  explicit ScopedCommunication(const char* name, const char* detail = nullptr)
      : recorder_(SpanRecorder::current()) {
    if (recorder_) recorder_->begin_communication(name, detail);
  }
  ~ScopedCommunication() {
    if (recorder_) recorder_->end_communication();
  }
  ScopedCommunication(const ScopedCommunication&) = delete;
  ScopedCommunication& operator=(const ScopedCommunication&) = delete;

 private:
  SpanRecorder* recorder_;
};

/// The forward pass of one unit of a model, while it lives: a span, and the unit of what runs.
class ScopedUnit {
 public:
  explicit ScopedUnit(const char* path)
      : span_(SpanKind::kUnit, "forward", path), recorder_(SpanRecorder::recording()) {
    if (!recorder_) return;
    before_ = recorder_->unit();
    recorder_->set_unit(path);
  }
  ~ScopedUnit() {
    if (recorder_) recorder_->set_unit(before_);
  }
  ScopedUnit(const ScopedUnit&) = delete;
  ScopedUnit& operator=(const ScopedUnit&) = delete;

 private:
  ScopedSpan span_;
  SpanRecorder* recorder_;
  const char* before_ = nullptr;
};

}  // namespace shoal
