#include "shoal/train/report/loss_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/svg_axis.h"

namespace shoal::train {
namespace {

constexpr double kWidth = 860, kHeight = 480, kLeft = 76, kRight = 24, kTop = 52, kBottom = 58;
constexpr const char* kTrain = "#3b6fb6";
constexpr const char* kEvaluation = "#d1495b";
constexpr const char* kInk = "#333";

struct Point {
  double x, y;
};

std::string polyline(const std::vector<Point>& points, const Axis& x, const Axis& y,
                     const char* color, double width, double opacity) {
  std::string path;
  for (const Point& p : points)
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x(p.x), y(p.y));
  return fmt::format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" "
      "stroke-opacity=\"{}\" stroke-linejoin=\"round\"/>\n",
      path, color, width, opacity);
}

/// At most `most` points: the mean of equal stretches.
std::vector<Point> thinned(const std::vector<Point>& points, std::size_t most) {
  if (points.size() <= most) return points;
  std::vector<Point> out;
  for (std::size_t i = 0; i < most; ++i) {
    const std::size_t begin = i * points.size() / most;
    const std::size_t end = (i + 1) * points.size() / most;
    Point mean{0, 0};
    for (std::size_t k = begin; k < end; ++k) mean.x += points[k].x, mean.y += points[k].y;
    out.push_back(
        {mean.x / static_cast<double>(end - begin), mean.y / static_cast<double>(end - begin)});
  }
  return out;
}

/// The mean over about a fortieth of the run around each point.
std::vector<Point> smoothed(const std::vector<Point>& points) {
  const std::size_t reach = points.size() / 80;
  // Prefix sums: any window's mean takes two of them.
  std::vector<double> sums(points.size() + 1, 0);
  for (std::size_t i = 0; i < points.size(); ++i) sums[i + 1] = sums[i] + points[i].y;
  std::vector<Point> out;
  for (std::size_t i = 0; i < points.size(); ++i) {
    // At the steep beginning as far to the right as to the left, so that the curve is not shifted;
    // at the flat end the left side alone keeps it calm.
    const std::size_t left = std::min(reach, i);
    const std::size_t right = std::min(i < reach ? left : reach, points.size() - 1 - i);
    out.push_back({points[i].x,
                   (sums[i + right + 1] - sums[i - left]) / static_cast<double>(left + right + 1)});
  }
  return out;
}

// The last fortieth, as single steps scatter.
double last_mean(const std::vector<Point>& points) {
  const std::size_t count = std::max<std::size_t>(1, points.size() / 40);
  double sum = 0;
  for (std::size_t i = points.size() - count; i < points.size(); ++i) sum += points[i].y;
  return sum / static_cast<double>(count);
}

std::string axes(const Axis& x, const Axis& y) {
  std::string out;
  for (const double value : ticks(y, 9)) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#e3e3e3\"/>\n",
        x.from, y(value), x.to, y(value));
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.6g}</text>\n",
                       x.from - 8, y(value) + 4, value);
  }
  for (const double value : ticks(x, 8)) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x(value),
        y.from, x(value), y.from + 5, kInk);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.9g}</text>\n",
                       x(value), y.from + 20, value);
  }
  out += fmt::format(
      "<polyline points=\"{0:.1f},{2:.1f} {0:.1f},{3:.1f} {1:.1f},{3:.1f}\" fill=\"none\" "
      "stroke=\"{4}\"/>\n",
      x.from, x.to, y.to, y.from, kInk);
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">step</text>\n",
                     (x.from + x.to) / 2, kHeight - 14);
  out += fmt::format(
      "<text transform=\"translate(20,{:.1f}) rotate(-90)\" text-anchor=\"middle\">loss{}</text>\n",
      (y.from + y.to) / 2, y.logarithmic ? " (logarithmic)" : "");
  return out;
}

std::string legend(double final_train, const std::vector<Point>& evaluations) {
  const auto entry = [](int row, const char* color, const std::string& text) {
    const double top = kTop + 14 + 20 * row;
    const double right = kWidth - kRight - 12;
    return fmt::format(
               "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"{3}\" "
               "stroke-width=\"3\"/>\n",
               right - 24, top - 4, right, color) +
           fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
                       right - 32, top, text);
  };
  std::string out = entry(0, kTrain, fmt::format("training, last {:.4g}", final_train));
  if (!evaluations.empty())
    out += entry(1, kEvaluation, fmt::format("validation, last {:.4g}", evaluations.back().y));
  return out;
}

}  // namespace

std::string loss_plot(const std::string& title, const std::vector<StepMetrics>& metrics) {
  std::vector<Point> train;
  std::vector<Point> evaluations;
  for (const StepMetrics& m : metrics) {
    train.push_back({static_cast<double>(m.step), m.loss});
    if (m.evaluation) evaluations.push_back({static_cast<double>(m.step), m.evaluation->loss});
  }
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"{2}\">\n<rect "
      "width=\"{0}\" height=\"{1}\" fill=\"white\" "
      "stroke=\"none\"/>\n<text x=\"{3}\" y=\"30\" font-size=\"17\">{4}</text>\n",
      kWidth, kHeight, kInk, kLeft, escaped(title));
  if (train.empty()) {
    return out + fmt::format("<text x=\"{}\" y=\"{}\">no step was trained</text>\n</svg>\n", kLeft,
                             kHeight / 2);
  }

  double low = train[0].y;
  double high = train[0].y;
  for (const auto* points : {&train, &evaluations})
    for (const Point& p : *points) {
      low = std::min(low, p.y);
      high = std::max(high, p.y);
    }
  Axis y{low, high, kHeight - kBottom, kTop, low > 0 && high / low > 10};
  if (y.logarithmic) {
    y.low /= 1.1, y.high *= 1.1;
  } else {
    // A loss that never changes still needs an axis.
    const double margin = high > low ? 0.05 * (high - low) : std::max(1e-3, 0.05 * std::abs(high));
    y.low = low >= 0 ? std::max(0.0, low - margin) : low - margin, y.high += margin;
  }
  const Axis x{0, std::max(1.0, train.back().x), kLeft, kWidth - kRight};
  const auto mean = smoothed(train);
  // No more points than pixels: a run of a million steps makes a small file.
  out += axes(x, y) + polyline(thinned(train, 1500), x, y, kTrain, 1, 0.35) +
         polyline(thinned(mean, 1500), x, y, kTrain, 2, 1);
  if (!evaluations.empty()) out += polyline(evaluations, x, y, kEvaluation, 2, 1);
  for (const Point& p : thinned(evaluations, 200)) {
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x(p.x),
                       y(p.y), kEvaluation);
  }
  return out + legend(last_mean(train), evaluations) + "</svg>\n";
}

}  // namespace shoal::train
