#include "shoal/train/report/memory_timeline.h"

#include <fmt/format.h>

#include <algorithm>

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
constexpr std::array kColors{"#3b6fb6", "#7a5fa6", "#d1495b", "#edae49", "#66a182", "#9aa5b1"};

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

std::string legend(const std::vector<MemoryMark>& marks) {
  std::vector<std::pair<const char*, std::string>> entries;
  for (std::size_t i = kOrder.size(); i-- > 0;) {
    const bool drawn = std::any_of(marks.begin(), marks.end(),
                                   [&](const MemoryMark& mark) { return of(mark, kOrder[i]) > 0; });
    if (drawn) entries.emplace_back(kColors[i], name(kOrder[i]));
  }
  return svg::legend(kPlotWidth - kRightMargin + 14, kTopMargin + 14, entries);
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
  std::vector<MemoryMark> step;
  // The last recorded step: the first ones still allocate what later ones use again.
  for (const MemoryMark& mark : marks)
    if (mark.step == marks.back().step) step.push_back(mark);
  std::string out = svg::opening(kPlotWidth, kPlotHeight, kLeftMargin, title);
  if (step.size() < 2)
    return out + svg::label(kLeftMargin, kPlotHeight / 2, "no step was watched") + "</svg>\n";
  double most = 0;
  for (const MemoryMark& mark : step) most = std::max(most, mark.peak);
  const svg::Axis x{0, std::max(step.back().ms, 1e-3), kLeftMargin, kPlotWidth - kRightMargin};
  const svg::Axis y{0, std::max(1.05 * most / kMB, 1e-3), kPlotHeight - kBottomMargin, kTopMargin};
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
  return out + legend(step) + "</svg>\n";
}

}  // namespace shoal::train
