#include "shoal/train/report/memory_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "shoal/base/number.h"
#include "shoal/base/svg.h"
#include "shoal/base/units.h"

namespace shoal::train {
namespace {

constexpr double kPlotWidth = 860, kPlotHeight = 480, kLeftMargin = 76, kRightMargin = 170,
                 kTopMargin = 52, kBottomMargin = 58;

/// From the bottom of the picture upwards: what stays first.
constexpr std::array kOrder{MemoryCategory::kParameters,    MemoryCategory::kOptimizer,
                            MemoryCategory::kGradients,     MemoryCategory::kActivations,
                            MemoryCategory::kCommunication, MemoryCategory::kTemporary};
constexpr std::array kColors{"#24508f", "#9d7fc4", "#d1495b", "#edae49", "#66a182", "#9aa5b1"};
constexpr std::array kColorNames{"blue", "purple", "red", "yellow", "green", "grey"};
/// The picture in pixels.
constexpr int kPixelWidth = 640, kPixelHeight = 320;
/// The vertical axis ends so far above the highest peak.
constexpr double kHeadroom = 1.05;

double of(const MemoryMark& mark, MemoryCategory category) {
  return mark.categories[static_cast<int>(category)];
}

/// One category's area: along the upper edge and back along the lower one.
std::string area(const std::vector<MemoryMark>& marks, std::vector<double>& base,
                 MemoryCategory category, const char* color, const svg::Axis& x,
                 const svg::Axis& y) {
  std::string up;
  std::string back;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    // The lower edge is collected in reverse, so that the polygon closes.
    back = fmt::format(" {:.1f},{:.1f}", x(marks[i].ms), y(base[i] / kMB)) + back;
    base[i] += of(marks[i], category);
    up += fmt::format("{}{:.1f},{:.1f}", up.empty() ? "" : " ", x(marks[i].ms), y(base[i] / kMB));
  }
  return fmt::format("<polygon points=\"{}{}\" fill=\"{}\" fill-opacity=\"0.85\"/>\n", up, back,
                     color);
}

/// The marks of the last recorded step: the first ones still allocate what later ones use again.
std::vector<MemoryMark> last_step(const std::vector<MemoryMark>& marks) {
  std::vector<MemoryMark> step;
  for (const MemoryMark& mark : marks)
    if (mark.step == marks.back().step) step.push_back(mark);
  return step;
}

double highest(const std::vector<MemoryMark>& step) {
  double most = 0;
  for (const MemoryMark& mark : step) most = std::max(most, mark.peak);
  return most;
}

bool drawn(const std::vector<MemoryMark>& marks, MemoryCategory category) {
  return std::any_of(marks.begin(), marks.end(),
                     [&](const MemoryMark& mark) { return of(mark, category) > 0; });
}

std::string legend(const std::vector<MemoryMark>& marks) {
  std::vector<std::pair<const char*, std::string>> entries;
  for (std::size_t i = kOrder.size(); i-- > 0;) {
    if (drawn(marks, kOrder[i])) entries.emplace_back(kColors[i], name(kOrder[i]));
  }
  entries.emplace_back(svg::kInk, "peak of a stretch");
  return svg::legend(kPlotWidth - kRightMargin + 14, kTopMargin + 14, entries);
}

/// Returns the part of a step that ends at a mark. Backward marks stand where the pass enters a
/// unit, and the one of the update before it: what follows a mark is in the part of the next one.
const char* part_before(const MemoryMark& mark) {
  if (mark.where.starts_with("forward")) return "forward";
  if (mark.where == "end") return "update";
  return "backward";
}

/// Writes over the picture which part of the step is forward, backward and update, where there is
/// room for the word, with a line at both ends.
std::string parts_of_the_step(const std::vector<MemoryMark>& step, const svg::Axis& x,
                              const svg::Axis& y) {
  constexpr double kLetter = 7;
  const std::string look = fmt::format("stroke=\"{}\" stroke-dasharray=\"2 3\"", svg::kInk);
  std::string out;
  for (std::size_t first = 1; first < step.size();) {
    const std::string part = part_before(step[first]);
    std::size_t last = first;
    while (last + 1 < step.size() && part == part_before(step[last + 1])) ++last;
    const double from = x(step[first - 1].ms);
    const double to = x(step[last].ms);
    if (to - from >= kLetter * static_cast<double>(part.size())) {
      out += svg::label((from + to) / 2, y.to - 4, part, "middle");
      for (const double end : {from, to}) out += svg::line(end, y.from, end, y.to, look);
    }
    first = last + 1;
  }
  return out;
}

/// "#3b6fb6"
Color color_of(std::string_view text) {
  const auto part = [&](std::size_t at) {
    return parse_number<std::uint8_t>(text.substr(at, 2), 16).value_or(0);
  };
  return {part(1), part(3), part(5)};
}

/// Draws one column: the categories at a time between two marks, from the bottom upwards.
void draw_column(Pixels& pixels, int x, const MemoryMark& before, const MemoryMark& after,
                 double share, double top) {
  const auto row = [&](double bytes) {
    return std::clamp(static_cast<int>(bytes / top * kPixelHeight), 0, kPixelHeight);
  };
  double base = 0;
  for (std::size_t i = 0; i < kOrder.size(); ++i) {
    const double from = of(before, kOrder[i]);
    const double bytes = from + share * (of(after, kOrder[i]) - from);
    for (int y = row(base); y < row(base + bytes); ++y)
      pixels.set(x, kPixelHeight - 1 - y, color_of(kColors[i]));
    base += bytes;
  }
  // The peak of a stretch is known, not where in it.
  pixels.set(x, kPixelHeight - 1 - std::min(row(after.peak), kPixelHeight - 1), Color());
}

}  // namespace

std::string to_csv(const std::vector<MemoryMark>& marks) {
  std::string out = "step,ms,where,peak_bytes";
  for (int c = 0; c < kMemoryCategories; ++c)
    out += fmt::format(",{}", name(static_cast<MemoryCategory>(c)));
  out += "\n";
  for (const MemoryMark& mark : marks) {
    out += fmt::format("{},{:.3f},{},{:.0f}", mark.step, mark.ms, mark.where, mark.peak);
    for (const double bytes : mark.categories) out += fmt::format(",{:.0f}", bytes);
    out += "\n";
  }
  return out;
}

std::string memory_plot(const std::string& title, const std::vector<MemoryMark>& marks) {
  const std::vector<MemoryMark> step = last_step(marks);
  std::string out = svg::opening(kPlotWidth, kPlotHeight, kLeftMargin, title);
  if (step.size() < 2)
    return out + svg::label(kLeftMargin, kPlotHeight / 2, "no step was watched") + "</svg>\n";
  const svg::Axis x{0, std::max(step.back().ms, 1e-3), kLeftMargin, kPlotWidth - kRightMargin};
  const svg::Axis y{0, std::max(kHeadroom * highest(step) / kMB, 1e-3), kPlotHeight - kBottomMargin,
                    kTopMargin};
  out += svg::left_scale(y, x.from, x.to, "MB of one rank");
  out += svg::bottom_scale(x, y.to, y.from, "ms of the step");
  std::vector<double> base(step.size());
  for (std::size_t i = 0; i < kOrder.size(); ++i)
    out += area(step, base, kOrder[i], kColors[i], x, y);
  // The peak of a stretch is known, not where in it.
  for (std::size_t i = 1; i < step.size(); ++i) {
    const double peak = y(step[i].peak / kMB);
    out += svg::line(x(step[i - 1].ms), peak, x(step[i].ms), peak,
                     fmt::format("stroke=\"{}\"", svg::kInk));
  }
  return out + parts_of_the_step(step, x, y) + legend(step) + "</svg>\n";
}

Pixels memory_pixels(const std::vector<MemoryMark>& marks) {
  constexpr Color kWhite{255, 255, 255};
  Pixels pixels(kPixelWidth, kPixelHeight, kWhite);
  const std::vector<MemoryMark> step = last_step(marks);
  const double top = kHeadroom * highest(step);
  if (step.size() < 2 || top <= 0) return pixels;
  std::size_t after = 1;
  for (int x = 0; x < kPixelWidth; ++x) {
    const double ms = step.back().ms * (x + 0.5) / kPixelWidth;
    while (after + 1 < step.size() && step[after].ms < ms) ++after;
    const MemoryMark& before = step[after - 1];
    const double took = step[after].ms - before.ms;
    const double share = took > 0 ? std::clamp((ms - before.ms) / took, 0.0, 1.0) : 1;
    draw_column(pixels, x, before, step[after], share, top);
  }
  return pixels;
}

std::string memory_legend(const std::vector<MemoryMark>& marks) {
  const std::vector<MemoryMark> step = last_step(marks);
  if (step.size() < 2) return "no step was watched";
  std::string text =
      fmt::format("Step {} on rank 0: {:.4g} ms from left to right, {:.4g} MB from bottom to top",
                  step.back().step, step.back().ms, kHeadroom * highest(step) / kMB);
  for (std::size_t i = 0; i < kOrder.size(); ++i)
    if (drawn(step, kOrder[i])) text += fmt::format("; {}: {}", kColorNames[i], name(kOrder[i]));
  return text + "; black: the peak of each stretch";
}

}  // namespace shoal::train
