// What a curve of measured ranks says.
#include "apps/shoal/scaling/scaling_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace shoal::apps::scaling_curve_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

plan::StepTime planned(double pipeline, double optimizer) {
  plan::StepTime time;
  time.pipeline = pipeline;
  time.optimizer = optimizer;
  return time;
}

// Four ranks take 40 ms for what one does in 100: 15 more than a quarter.
ScalingCurve curve_of_four() {
  ScalingCurve curve{.title = "job", .work = 1000};
  curve.points.push_back(
      {.ranks = 1, .step_s = 0.1, .data_wait_s = 0.004, .planned = planned(0.08, 0.008)});
  curve.points.push_back({.ranks = 4,
                          .step_s = 0.04,
                          .data_wait_s = 0.003,
                          .comm_exposed_s = 0.004,
                          .planned = planned(0.024, 0.008)});
  return curve;
}

TEST(ScalingCurve, WhatIsLostAddsUp) {
  const ScalingCurve curve = curve_of_four();
  const LostTime lost = lost_time(curve.points[0], curve.points[1]);
  EXPECT_NEAR(lost.communication, 0.004, 1e-12);
  EXPECT_NEAR(lost.data, 0.003 - 0.001, 1e-12);
  EXPECT_NEAR(lost.update, 0.008 - 0.002, 1e-12);
  EXPECT_NEAR(lost.computing, 0.003, 1e-12);
  EXPECT_NEAR(lost.all(), 0.015, 1e-12);
  const LostTime none = lost_time(curve.points[0], curve.points[0]);
  EXPECT_NEAR(none.all(), 0, 1e-12);
}

TEST(ScalingCurve, TheLargestPartBounds) {
  ScalingCurve curve = curve_of_four();
  const auto bound_by = [&] { return bound(curve.points[0], curve.points[1]); };
  EXPECT_EQ(bound_by(), "the update");
  curve.points[1].comm_exposed_s = 0.0065;
  EXPECT_EQ(bound_by(), "communication");
  curve.points[1].data_wait_s = 0.02;
  EXPECT_EQ(bound_by(), "data");
  // Without a plan the update counts as computing.
  curve = curve_of_four();
  curve.points[0].planned = curve.points[1].planned = {};
  EXPECT_EQ(bound_by(), "computing");
  EXPECT_EQ(bound(curve.points[0], curve.points[0]), "nothing");
  // Less than a fiftieth of the step has no name.
  curve.points[1] = {.ranks = 4, .step_s = 0.0255, .data_wait_s = 0.001};
  EXPECT_EQ(bound_by(), "nothing");
}

TEST(ScalingCurve, TheTableHasRatesAndThePlan) {
  const std::string text = scaling_text(curve_of_four());
  EXPECT_THAT(
      text,
      HasSubstr("    4         40.0      2.5e+04    2.50      62 %          32.0  -20.0 %\n"));
  EXPECT_THAT(text, HasSubstr("With 4 ranks a step takes 40.0 ms, and 25.0 if they only divided "
                              "what 1 does."));
  EXPECT_THAT(text, HasSubstr("6.0 ms  the update, of which a rank makes more than its part\n"));
  EXPECT_THAT(text, HasSubstr("Bound by: the update\n"));
  ScalingCurve alone = curve_of_four();
  alone.points.pop_back();
  EXPECT_THAT(scaling_text(alone), Not(HasSubstr("Bound by")));
}

TEST(ScalingCurve, JsonHasWhatThePictureShows) {
  const auto json = nlohmann::json::parse(scaling_json(curve_of_four()));
  ASSERT_EQ(json.at("points").size(), 2u);
  const auto& four = json.at("points")[1];
  EXPECT_EQ(four.at("ranks"), 4);
  EXPECT_EQ(four.at("measured_step_s"), 0.04);
  EXPECT_NEAR(four.at("planned_step_s"), 0.032, 1e-12);
  EXPECT_EQ(four.at("bound_by"), "the update");
  ScalingCurve curve = curve_of_four();
  const std::string picture = scaling_plot(curve);
  for (const char* word : {"<svg", "measured", "planned", "in proportion", "bound by: the update"})
    EXPECT_THAT(picture, HasSubstr(word));
  curve.points.pop_back();
  curve.points[0].planned = {};
  EXPECT_THAT(scaling_plot(curve), Not(HasSubstr("planned")));
}

}  // namespace
}  // namespace shoal::apps::scaling_curve_test
