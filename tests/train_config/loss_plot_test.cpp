#include "shoal/train/config/loss_plot.h"

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

}  // namespace
}  // namespace shoal::train::loss_plot_test
