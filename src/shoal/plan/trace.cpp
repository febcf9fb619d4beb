#include "shoal/plan/trace.h"

#include <fmt/format.h>

#include <iterator>

#include "shoal/base/svg.h"

namespace shoal::plan {
namespace {

// Counts of ten digits and times of a thousand years take less.
constexpr std::size_t kLongestEvent = 512;

const char* colour(schedule::Kind kind) {
  switch (kind) {
    case schedule::Kind::kForward:
      return "#7fb2e5";
    case schedule::Kind::kBackward:
    case schedule::Kind::kInputGradient:
      return "#f2b880";
    case schedule::Kind::kWeightGradient:
      return "#9bcf9b";
    default:
      return "#dddddd";
  }
}

}  // namespace

TraceWriter::TraceWriter(std::ostream& out, int ranks)
    : out_(out), chunk_("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n") {
  chunk_.reserve(kChunkBytes);
  for (int rank = 0; rank < ranks; ++rank) {
    fmt::format_to(std::back_inserter(chunk_),
                   "{{\"ph\":\"M\",\"pid\":0,\"tid\":{0},\"name\":\"thread_name\",\"args\":{{"
                   "\"name\":\"rank {0}\"}}}},\n",
                   rank);
    write(false);
  }
}

// A complete event ("X"): begin and duration, in microseconds.
void TraceWriter::add(int rank, const schedule::Span& span) {
  fmt::format_to(std::back_inserter(chunk_),
                 "{{\"ph\":\"X\",\"pid\":0,\"tid\":{},\"name\":\"{}\",\"cat\":\"{}\",\"ts\":{:.3f},"
                 "\"dur\":{:.3f}}},\n",
                 rank, schedule::to_string(span.action), schedule::mark(span.action.kind),
                 span.begin * 1e6, (span.end - span.begin) * 1e6);
  write(false);
}

void TraceWriter::finish() {
  // The format wants no comma behind the last event, and nobody knows beforehand which is the last:
  // a closing event has none.
  chunk_ +=
      "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"shoal plan\"}}\n]}\n";
  write(true);
}

void TraceWriter::write(bool all) {
  // One more event must fit, so that the chunk never grows beyond what was reserved.
  if (!all && chunk_.size() < kChunkBytes - kLongestEvent) return;
  out_.write(chunk_.data(), static_cast<std::streamsize>(chunk_.size()));
  chunk_.clear();
}

std::string to_svg(const schedule::Timeline& timeline, const std::string& title) {
  constexpr double kWidth = 1200;
  constexpr double kRow = 22;
  constexpr double kLeft = 60;
  constexpr double kTop = 30;
  const double scale = timeline.makespan() > 0 ? (kWidth - kLeft - 10) / timeline.makespan() : 0;
  const double height = kTop + kRow * static_cast<double>(timeline.ranks.size()) + 10;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"10\">\n",
      kWidth, height);
  text += fmt::format(
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{}\" y=\"18\" "
      "font-size=\"13\">{}</text>\n",
      kLeft, svg::escaped(title));
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    text += fmt::format("<text x=\"4\" y=\"{}\">rank {}</text>\n", y + 14, rank);
    for (const schedule::Span& span : timeline.ranks[rank]) {
      // Waits show as gaps.
      if (!schedule::is_compute(span.action.kind)) continue;
      const double x = kLeft + span.begin * scale;
      const double width = (span.end - span.begin) * scale;
      text += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"white\" "
          "stroke-width=\"0.5\"/>",
          x, y, width, kRow - 3, colour(span.action.kind));
      if (width > 14) {
        text += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                            x + width / 2, y + 13, span.action.micro_batch);
      }
      text += "\n";
    }
  }
  return text + "</svg>\n";
}

}  // namespace shoal::plan
