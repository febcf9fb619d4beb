#include "shoal/train/report/memory_timeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/svg_axis.h"
#include "shoal/base/units.h"

namespace shoal::train {
namespace {

constexpr double kWidth = 860, kHeight = 480, kLeft = 76, kRight = 170, kTop = 52, kBottom = 58;
constexpr const char* kInk = "#333";

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
                 MemoryCategory category, const char* color, const Axis& x, const Axis& y) {
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

std::string frame(const Axis& x, const Axis& y) {
  std::string out;
  for (const double value : ticks(y, 9)) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#e3e3e3\"/>\n",
        x.from, y(value), x.to, y(value));
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.6g}</text>\n",
                       x.from - 8, y(value) + 4, value);
  }
  for (const double value : ticks(x, 8)) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.6g}</text>\n",
                       x(value), y.from + 20, value);
  }
  out +=
      fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">ms of the step</text>\n",
                  (x.from + x.to) / 2, kHeight - 14);
  return out + fmt::format(
                   "<text transform=\"translate(20,{:.1f}) rotate(-90)\" text-anchor=\"middle\">MB "
                   "of one rank</text>\n",
                   (y.from + y.to) / 2);
}

std::string legend(const std::vector<MemoryMark>& marks) {
  std::string out;
  int row = 0;
  for (std::size_t i = kOrder.size(); i-- > 0;) {
    double most = 0;
    for (const MemoryMark& mark : marks) most = std::max(most, of(mark, kOrder[i]));
    if (most == 0) continue;
    const double top = kTop + 14 + 20 * row++;
    const double left = kWidth - kRight + 14;
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"12\" fill=\"{}\" "
        "fill-opacity=\"0.85\"/>\n",
        left, top - 10, kColors[i]);
    out +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left + 20, top, name(kOrder[i]));
  }
  return out;
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
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"{2}\">\n<rect "
      "width=\"{0}\" height=\"{1}\" fill=\"white\" "
      "stroke=\"none\"/>\n<text x=\"{3}\" y=\"30\" font-size=\"17\">{4}</text>\n",
      kWidth, kHeight, kInk, kLeft, escaped(title));
  if (step.size() < 2) {
    return out + fmt::format("<text x=\"{}\" y=\"{}\">no step was watched</text>\n</svg>\n", kLeft,
                             kHeight / 2);
  }
  double most = 0;
  for (const MemoryMark& mark : step) most = std::max(most, mark.peak);
  const Axis x{0, std::max(step.back().ms, 1e-3), kLeft, kWidth - kRight};
  const Axis y{0, std::max(1.05 * most / kMB, 1e-3), kHeight - kBottom, kTop};
  out += frame(x, y);
  std::vector<double> base(step.size());
  for (std::size_t i = 0; i < kOrder.size(); ++i)
    out += area(step, base, kOrder[i], kColors[i], x, y);
  // The peak of a stretch is known, not where in it.
  for (std::size_t i = 1; i < step.size(); ++i) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
        x(step[i - 1].ms), y(step[i].peak / kMB), x(step[i].ms), y(step[i].peak / kMB), kInk);
  }
  return out + legend(step) + "</svg>\n";
}

}  // namespace shoal::train
