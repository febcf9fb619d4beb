#pragma once

#include <string>
#include <vector>

#include "shoal/train/config/metrics.h"

namespace shoal::train {

/// Draws the losses of a run as an SVG picture: every training step in a pale line, their running
/// mean in a strong one, evaluations as dots on a line. The vertical axis is logarithmic where
/// losses span more than a decade. Without metrics the picture says so.
std::string loss_plot(const std::string& title, const std::vector<StepMetrics>& metrics);

/// The losses of one run among several.
struct RunCurve {
  std::string name;
  std::vector<StepMetrics> metrics;
};

/// Draws the training losses of several runs over their steps in one picture: each step in a pale
/// line, the running mean in a strong one, a colour for each run. The legend says its name and
/// the mean of its last fortieth.
std::string loss_curves(const std::string& title, const std::vector<RunCurve>& runs);

}  // namespace shoal::train
