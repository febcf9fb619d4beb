#include "shoal/train/config/loss_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "shoal/base/svg.h"

namespace shoal::train {
namespace {

constexpr double kWidth = 860, kHeight = 480, kLeft = 76, kRight = 24, kTop = 52, kBottom = 58;
constexpr const char* kTrain = "#3b6fb6";
constexpr const char* kEvaluation = "#d1495b";

struct Point {
  double x, y;
};

std::string polyline(const std::vector<Point>& points, const svg::Axis& x, const svg::Axis& y,
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
    for (std::size_t k = begin; k < end; ++k) {
      mean.x += points[k].x;
      mean.y += points[k].y;
    }
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

/// Returns an axis on which all points lie; there is at least one.
svg::Axis loss_axis(const std::vector<const std::vector<Point>*>& curves) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const auto* points : curves)
    for (const Point& p : *points) {
      low = std::min(low, p.y);
      high = std::max(high, p.y);
    }
  svg::Axis y{low, high, kHeight - kBottom, kTop, low > 0 && high / low > 10};
  if (y.logarithmic) {
    y.low /= 1.1;
    y.high *= 1.1;
  } else {
    // A loss that never changes still needs an axis.
    const double margin = high > low ? 0.05 * (high - low) : std::max(1e-3, 0.05 * std::abs(high));
    y.low = low >= 0 ? std::max(0.0, low - margin) : low - margin;
    y.high += margin;
  }
  return y;
}

// The last fortieth, as single steps scatter.
double last_mean(const std::vector<Point>& points) {
  const std::size_t count = std::max<std::size_t>(1, points.size() / 40);
  double sum = 0;
  for (std::size_t i = points.size() - count; i < points.size(); ++i) sum += points[i].y;
  return sum / static_cast<double>(count);
}

}  // namespace

std::string loss_plot(const std::string& title, const std::vector<StepMetrics>& metrics) {
  std::vector<Point> train;
  std::vector<Point> evaluations;
  for (const StepMetrics& m : metrics) {
    train.push_back({static_cast<double>(m.step), m.loss});
    if (m.evaluation) evaluations.push_back({static_cast<double>(m.step), m.evaluation->loss});
  }
  std::string out = svg::opening(kWidth, kHeight, kLeft, title);
  if (train.empty())
    return out + svg::label(kLeft, kHeight / 2, "no step was trained") + "</svg>\n";

  const svg::Axis y = loss_axis({&train, &evaluations});
  const svg::Axis x{0, std::max(1.0, train.back().x), kLeft, kWidth - kRight};
  const auto mean = smoothed(train);
  out += svg::left_scale(y, x.from, x.to, y.logarithmic ? "loss (logarithmic)" : "loss");
  out += svg::bottom_scale(x, y.to, y.from, "step");
  // No more points than pixels: a run of a million steps makes a small file.
  out += polyline(thinned(train, 1500), x, y, kTrain, 1, 0.35);
  out += polyline(thinned(mean, 1500), x, y, kTrain, 2, 1);
  std::vector<std::pair<const char*, std::string>> legend{
      {kTrain, fmt::format("training, last {:.4g}", last_mean(train))}};
  if (!evaluations.empty()) {
    out += polyline(evaluations, x, y, kEvaluation, 2, 1);
    legend.emplace_back(kEvaluation, fmt::format("validation, last {:.4g}", evaluations.back().y));
  }
  for (const Point& p : thinned(evaluations, 200)) {
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x(p.x),
                       y(p.y), kEvaluation);
  }
  return out + svg::legend(kWidth - kRight - 180, kTop + 14, legend) + "</svg>\n";
}

std::string loss_curves(const std::string& title, const std::vector<RunCurve>& runs) {
  // The palette of Okabe and Ito can be told apart by people who see colours differently.
  constexpr std::array kColors{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                               "#e69f00", "#56b4e9", "#333333"};
  std::vector<std::vector<Point>> curves;
  std::vector<const std::vector<Point>*> drawn;
  double last_step = 1;
  for (const RunCurve& run : runs) {
    std::vector<Point>& points = curves.emplace_back();
    for (const StepMetrics& m : run.metrics)
      points.push_back({static_cast<double>(m.step), m.loss});
    if (!points.empty()) last_step = std::max(last_step, points.back().x);
  }
  for (const auto& points : curves)
    if (!points.empty()) drawn.push_back(&points);
  std::string out = svg::opening(kWidth, kHeight, kLeft, title);
  if (drawn.empty())
    return out + svg::label(kLeft, kHeight / 2, "no step was trained") + "</svg>\n";
  const svg::Axis y = loss_axis(drawn);
  const svg::Axis x{0, last_step, kLeft, kWidth - kRight};
  out += svg::left_scale(y, x.from, x.to, y.logarithmic ? "loss (logarithmic)" : "loss");
  out += svg::bottom_scale(x, y.to, y.from, "step");
  std::vector<std::pair<const char*, std::string>> legend;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const char* color = kColors[i % kColors.size()];
    if (curves[i].empty()) {
      legend.emplace_back(color, runs[i].name + ", no step");
      continue;
    }
    out += polyline(thinned(curves[i], 1500), x, y, color, 1, 0.25);
    out += polyline(thinned(smoothed(curves[i]), 1500), x, y, color, 2, 1);
    legend.emplace_back(color, fmt::format("{}, last {:.4g}", runs[i].name, last_mean(curves[i])));
  }
  return out + svg::legend(kWidth - kRight - 260, kTop + 14, legend) + "</svg>\n";
}

}  // namespace shoal::train
