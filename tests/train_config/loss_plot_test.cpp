#include "shoal/train/config/loss_plot.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace shoal::train::loss_plot_test {
namespace {

std::vector<StepMetrics> run_of(int steps, double first, double last) {
  std::vector<StepMetrics> all;
  for (int i = 1; i <= steps; ++i) {
    StepMetrics m{.step = i,
                  .loss = last + (first - last) * std::exp(-5.0 * i / steps),
                  .grad_norm = 1,
                  .lr = 1e-3,
                  .tokens = i,
                  .tokens_per_s = 1,
                  .evaluation = {}};
    if (i % (steps / 5) == 0) m.evaluation = Evaluation{.loss = m.loss * 1.05, .labels = 1};
    all.push_back(m);
  }
  return all;
}

TEST(LossPlot, DrawsBothCurvesInsideTheFrame) {
  const std::string svg = loss_plot("gpt & <co>", run_of(5000, 8, 2));
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_NE(svg.find("gpt &amp; &lt;co>"), std::string::npos);
  EXPECT_NE(svg.find("validation, last 2.1"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  const std::regex point("([0-9.]+),([0-9.]+)[ \"]");
  int points = 0;
  for (std::sregex_iterator at(svg.begin(), svg.end(), point), end; at != end; ++at, ++points) {
    EXPECT_GE(std::stod((*at)[1]), 70);
    EXPECT_LE(std::stod((*at)[1]), 860);
    EXPECT_GE(std::stod((*at)[2]), 50);
    EXPECT_LE(std::stod((*at)[2]), 430);
  }
  EXPECT_GT(points, 3000);
}

TEST(LossPlot, LogarithmicOverADecade) {
  EXPECT_NE(loss_plot("r", run_of(100, 30, 0.01)).find("(logarithmic)"), std::string::npos);
  EXPECT_EQ(loss_plot("r", run_of(100, 9, 2)).find("(logarithmic)"), std::string::npos);
}

TEST(LossPlot, NothingAndOneStep) {
  EXPECT_NE(loss_plot("empty", {}).find("no step was trained"), std::string::npos);
  EXPECT_EQ(
      loss_plot("one",
                {{.step = 1, .loss = 0, .grad_norm = 0, .lr = 0, .tokens = 1, .tokens_per_s = 1}})
          .find("nan"),
      std::string::npos);
}

TEST(LossPlot, SeveralRunsShareTheAxes) {
  const std::string svg =
      loss_curves("two", {{"runs/a<1", run_of(400, 8, 2)}, {"runs/b", run_of(200, 6, 3)}});
  EXPECT_NE(svg.find("runs/a&lt;1, last 2.0"), std::string::npos);
  EXPECT_NE(svg.find("runs/b, last 3.0"), std::string::npos);
  // Each run has a pale and a strong line in its own colour. The shorter one ends in the middle of
  // the axis of steps, which both share.
  const std::regex curve("<polyline points=\"([^\"]*)\"[^>]*stroke=\"(#[0-9a-f]+)\"");
  std::map<std::string, std::vector<double>> ends;
  for (std::sregex_iterator at(svg.begin(), svg.end(), curve), end; at != end; ++at) {
    const std::string points = (*at)[1];
    ends[(*at)[2]].push_back(std::stod(points.substr(points.rfind(' ') + 1)));
  }
  ASSERT_EQ(ends.size(), 2u);
  std::vector<double> right;
  for (const auto& [color, list] : ends) {
    ASSERT_EQ(list.size(), 2u);
    EXPECT_EQ(list[0], list[1]);
    right.push_back(list[0]);
  }
  std::sort(right.begin(), right.end());
  EXPECT_NEAR(right[0], (76 + 836) / 2.0, 1);
  EXPECT_NEAR(right[1], 836, 1);
  EXPECT_NE(loss_curves("none", {{"runs/a", {}}}).find("no step was trained"), std::string::npos);
}

struct Place {
  double x, y;
};

/// The points of every curve, in the order in which they are drawn.
std::vector<std::vector<Place>> curves_of(const std::string& svg) {
  std::vector<std::vector<Place>> curves;
  // std::regex matches a long run of characters by recursion, and a curve has thousands of points.
  const std::string begin = "<polyline points=\"";
  const std::regex point("([0-9.]+),([0-9.]+)");
  for (std::size_t at = svg.find(begin); at != std::string::npos; at = svg.find(begin, at)) {
    at += begin.size();
    const std::string points = svg.substr(at, svg.find('"', at) - at);
    curves.emplace_back();
    for (std::sregex_iterator p(points.begin(), points.end(), point), last; p != last; ++p)
      curves.back().push_back({std::stod((*p)[1]), std::stod((*p)[2])});
  }
  return curves;
}

std::vector<StepMetrics> losses(const std::vector<double>& all) {
  std::vector<StepMetrics> metrics;
  for (const double loss : all) {
    const auto step = static_cast<std::int64_t>(metrics.size() + 1);
    metrics.push_back({.step = step, .loss = loss, .grad_norm = 1, .lr = 1, .tokens = step});
  }
  return metrics;
}

// 3200 steps are drawn as 1500 means. The strong line is the mean of the forty steps on either
// side, fewer at the beginning and at the end.
TEST(LossPlot, CurvesAreTheLossesAndTheirMeans) {
  constexpr int kSteps = 3200;
  std::vector<double> loss(kSteps);
  for (int i = 0; i < kSteps; ++i) loss[i] = 2 + (i * 7919 % 1000) / 1000.0;
  std::vector<double> mean(kSteps);
  for (int i = 0; i < kSteps; ++i) {
    const int first = std::max(0, i - 40);
    const int last = i < 40 ? 2 * i : std::min(kSteps - 1, i + 40);
    for (int k = first; k <= last; ++k) mean[i] += loss[k] / (last - first + 1);
  }
  auto metrics = losses(loss);
  metrics[799].evaluation = Evaluation{.loss = 2.25, .labels = 1};
  metrics[1599].evaluation = Evaluation{.loss = 2.5, .labels = 1};
  const std::string svg = loss_plot("r", metrics);
  // From 2 to 2.999 with a twentieth more at either end; the picture is 860 by 480.
  const auto place = [](double step, double value) {
    return Place{76 + step / kSteps * 760, 422 - (value - 1.95005) / 1.0989 * 370};
  };
  const auto curves = curves_of(svg);
  ASSERT_EQ(curves.size(), 3u);
  for (int c = 0; c < 2; ++c) {
    const auto& all = c == 0 ? loss : mean;
    ASSERT_EQ(curves[c].size(), 1500u);
    for (int i = 0; i < 1500; ++i) {
      const int begin = i * kSteps / 1500;
      const int end = (i + 1) * kSteps / 1500;
      double step = 0;
      double value = 0;
      for (int k = begin; k < end; ++k) {
        step += (k + 1.0) / (end - begin);
        value += all[k] / (end - begin);
      }
      ASSERT_NEAR(curves[c][i].x, place(step, value).x, 0.051) << c << " " << i;
      ASSERT_NEAR(curves[c][i].y, place(step, value).y, 0.051) << c << " " << i;
    }
  }
  ASSERT_EQ(curves[2].size(), 2u);
  EXPECT_NEAR(curves[2][0].x, place(800, 2.25).x, 0.051);
  EXPECT_NEAR(curves[2][1].y, place(1600, 2.5).y, 0.051);
  const std::regex circle("<circle cx=\"([0-9.]+)\" cy=\"([0-9.]+)\"");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(svg, found, circle));
  EXPECT_NEAR(std::stod(found[1]), place(800, 2.25).x, 0.051);
  EXPECT_NEAR(std::stod(found[2]), place(800, 2.25).y, 0.051);
  double last = 0;
  for (int i = kSteps - 80; i < kSteps; ++i) last += loss[i] / 80;
  EXPECT_NE(svg.find(fmt::format("training, last {:.4g}<", last)), std::string::npos);
  EXPECT_NE(svg.find("validation, last 2.5<"), std::string::npos);
}

TEST(LossPlot, AxesHoldWhatIsDrawn) {
  const auto heights = [](const std::vector<double>& all) {
    const auto curves = curves_of(loss_plot("r", losses(all)));
    std::vector<double> found;
    for (const Place& place : curves.at(0)) found.push_back(place.y);
    return found;
  };
  // Equal losses lie in the middle, zeros at the bottom.
  EXPECT_NEAR(heights({2, 2})[0], 237, 0.051);
  EXPECT_NEAR(heights({0, 0})[0], 422, 0.051);
  EXPECT_NEAR(heights({-2, -2})[0], 237, 0.051);
  // Down to 0 and not below where all are positive.
  EXPECT_NEAR(heights({0.1, 0.9})[0], 422 - (0.1 - 0.06) / 0.88 * 370, 0.051);
  EXPECT_NEAR(heights({0.01, 1.01, 0.01, 0})[0], 422 - 0.01 / 1.0605 * 370, 0.051);
  // A decade is not drawn by its logarithm, and more than one is: a tenth is left at either end.
  EXPECT_NEAR(heights({1, 10})[1], 422 - (10 - 0.55) / 9.9 * 370, 0.051);
  EXPECT_NEAR(heights({1, 20})[1], 422 - std::log(20 * 1.1) / std::log(20 * 1.1 * 1.1) * 370,
              0.051);
}

TEST(LossPlot, ARunWithoutStepsIsInTheLegend) {
  const std::string svg = loss_curves("two", {{"a", {}}, {"b", losses({2, 3})}});
  EXPECT_NE(svg.find("a, no step"), std::string::npos);
  EXPECT_NE(svg.find("b, last 3<"), std::string::npos);
  EXPECT_EQ(curves_of(svg).size(), 2u);
  EXPECT_EQ(svg.find("(logarithmic)"), std::string::npos);
  EXPECT_NE(loss_curves("wide", {{"b", losses({0.2, 3})}}).find("(logarithmic)"),
            std::string::npos);
}

}  // namespace
}  // namespace shoal::train::loss_plot_test
