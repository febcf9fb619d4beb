#include "shoal/train/config/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>

namespace shoal::train {
namespace {

/// Writes events, with commas between them.
class EventList {
 public:
  explicit EventList(std::int64_t zero) : zero_(zero) {}

  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_ += text_.empty() ? "" : ",\n";
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }
  /// Microseconds with all digits of the nanoseconds, so that spans still nest.
  std::string time(std::int64_t ns) const { return micro(ns - zero_); }
  static std::string micro(std::int64_t ns) {
    return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
  }
  const std::string& text() const { return text_; }

 private:
  std::int64_t zero_;
  std::string text_;
};

/// Perfetto knows a thread by its number alone, as a machine does, so no two ranks may share one; a
/// thread with the number of a process would be that process's first.
std::size_t thread_number(std::size_t rank, std::size_t thread) {
  return 100'000 * (rank + 1) + thread;
}

void add_name(EventList& events, std::size_t rank, std::size_t thread, const std::string& name) {
  events.add(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", rank,
             thread_number(rank, thread), name);
  events.add(
      R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})",
      rank, thread_number(rank, thread), thread);
}

std::string arguments_of(const Span& span) {
  std::string text;
  const auto put = [&](std::string_view key, auto value) {
    fmt::format_to(std::back_inserter(text), "{}\"{}\":{}", text.empty() ? "" : ",", key, value);
  };
  switch (span.kind) {
    case SpanKind::kStep:
      put("step", span.at[0]);
      break;
    case SpanKind::kForward:
    case SpanKind::kBackward:
      if (span.at[0] > 0) put("micro_batch", span.at[0]);
      if (span.at[1] > 0) put("stage", span.at[1]);
      break;
    case SpanKind::kMatmul:
      put("m", span.at[0]);
      put("n", span.at[1]);
      put("k", span.at[2]);
      break;
    default:
      break;
  }
  if (span.flops > 0) put("flops", span.flops);
  if (span.bytes > 0) put("bytes", span.bytes);
  return text;
}

void add_spans(EventList& events, std::size_t rank, const SpanLog& log) {
  for (const Span& span : log.spans) {
    const std::string arguments = arguments_of(span);
    events.add(
        R"({{"ph":"X","pid":{},"tid":{},"cat":"{}","name":"{}{}{}","ts":{},"dur":{}{}{}{}}})", rank,
        thread_number(rank, 0), name(span.kind), span.name, span.detail ? " " : "",
        span.detail ? span.detail : "", events.time(span.begin),
        EventList::micro(span.end - span.begin), arguments.empty() ? "" : R"(,"args":{)", arguments,
        arguments.empty() ? "" : "}");
  }
}

/// Ranks that hold equal keys have taken part in one operation.
using MatchKey = std::tuple<std::uint64_t, std::string, std::int32_t, std::int32_t, std::uint32_t,
                            std::uint64_t>;

/// One end of a flow arrow.
struct ArrowEnd {
  std::int64_t time;
  std::int64_t end;
  std::size_t rank;
  std::size_t thread;
  const char* name;
  bool sends;
};

using Matches = std::map<MatchKey, std::vector<ArrowEnd>>;

void add_transfers(EventList& events, std::size_t rank, const SpanLog& log, Matches& matches) {
  std::int64_t last = 0;
  for (const Span& span : log.spans) last = std::max(last, span.end);
  std::vector<std::int64_t> threads;  // when the last operation on each ends
  for (const Transfer& transfer : log.transfers) {
    const std::int64_t end = transfer.end > 0 ? transfer.end : std::max(last, transfer.begin);
    // The first thread that is free: slices of one thread may not overlap.
    auto free = std::find_if(threads.begin(), threads.end(),
                             [&](std::int64_t busy) { return busy <= transfer.begin; });
    if (free == threads.end()) {
      free = threads.insert(threads.end(), 0);
      const auto number = threads.size();
      add_name(events, rank, number, fmt::format("communication {}", number));
    }
    *free = end;
    const auto thread = static_cast<std::size_t>(free - threads.begin()) + 1;
    // A wait notices the completion and then ends: it may last a moment longer than the operation.
    const std::int64_t blocked = std::min(transfer.blocked, end - transfer.begin);
    const bool message = transfer.source >= 0 || transfer.destination >= 0;
    const std::string ends = message
                                 ? fmt::format(R"(,"source":{},"destination":{},"tag":{})",
                                               transfer.source, transfer.destination, transfer.tag)
                                 : "";
    events.add(
        R"({{"ph":"X","pid":{},"tid":{},"cat":"transfer","name":"{}","ts":{},"dur":{},"args":{{)"
        R"("group":"{}","group_id":"{:x}","ranks":{},"number":{},"bytes":{},"blocked_us":{}{}{}}}}})",
        rank, thread_number(rank, thread), transfer.name, events.time(transfer.begin),
        EventList::micro(end - transfer.begin), transfer.group, transfer.group_id, transfer.ranks,
        transfer.number, transfer.bytes, EventList::micro(blocked), ends,
        transfer.end > 0 ? "" : R"(,"unfinished":true)");
    // Sends and receives have different names and match all the same.
    matches[{transfer.group_id, message ? "" : transfer.name, transfer.source, transfer.destination,
             transfer.tag, transfer.number}]
        .push_back({transfer.begin, end, rank, thread, transfer.name,
                    std::string_view(transfer.name) == "send"});
  }
}

void add_flows(EventList& events, Matches& matches) {
  std::size_t id = 0;
  for (auto& [key, places] : matches) {
    if (places.size() < 2) continue;
    ++id;
    // From one rank to the next in the order of their starts, as arrows go forward in time. A
    // message goes from its sender, and the arrow ends while it is received.
    std::stable_sort(places.begin(), places.end(), [](const ArrowEnd& a, const ArrowEnd& b) {
      return a.sends != b.sends ? a.sends : a.time < b.time;
    });
    std::int64_t time = std::numeric_limits<std::int64_t>::min();
    for (std::size_t i = 0; i < places.size(); ++i) {
      const ArrowEnd& place = places[i];
      time = std::min(std::max(time, place.time), place.end);
      const bool last = i + 1 == places.size();
      const char* kind = "t";
      if (i == 0) kind = "s";
      if (last) kind = "f";
      events.add(R"({{"ph":"{}","id":{},"pid":{},"tid":{},"cat":"match","name":"{}","ts":{}{}}})",
                 kind, id, place.rank, thread_number(place.rank, place.thread), places.front().name,
                 events.time(time), last ? R"(,"bp":"e")" : "");
    }
  }
}

}  // namespace

std::string trace_json(const TraceHead& head, const std::vector<SpanLog>& ranks) {
  std::int64_t zero = std::numeric_limits<std::int64_t>::max();
  std::uint64_t dropped = 0;
  for (const SpanLog& log : ranks) {
    dropped += log.dropped;
    if (!log.spans.empty()) zero = std::min(zero, log.spans.front().begin);
    if (!log.transfers.empty()) zero = std::min(zero, log.transfers.front().begin);
  }
  EventList events(zero == std::numeric_limits<std::int64_t>::max() ? 0 : zero);
  Matches matches;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    events.add(R"({{"ph":"M","pid":{0},"name":"process_name","args":{{"name":"rank {0}"}}}})",
               rank);
    events.add(R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}})",
               rank);
    add_name(events, rank, 0, "training");
    add_spans(events, rank, ranks[rank]);
    add_transfers(events, rank, ranks[rank], matches);
  }
  add_flows(events, matches);
  const nlohmann::json other{{"program", "shoal train"},
                             {"job", head.job},
                             {"first_step", head.first_step},
                             {"last_step", head.last_step},
                             {"ranks", ranks.size()},
                             {"threads", head.threads},
                             {"precision", head.precision},
                             {"clock_error_us", head.clock_error_us},
                             {"dropped", dropped},
                             {"peak_flops", head.peak_flops},
                             {"peak_bytes_per_s", head.peak_bytes}};
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\n\"traceEvents\":[\n{}\n]}}\n",
                     other.dump(), events.text());
}

}  // namespace shoal::train
