#pragma once

#include <string>
#include <vector>

#include "shoal/train/config/metrics.h"

namespace shoal::train {

/// Draws the losses of a run as an SVG picture: every training step in a pale line, their running
/// mean in a strong one, evaluations as dots on a line. The vertical axis is logarithmic where
/// losses span more than a decade. Without metrics the picture says so.
std::string loss_plot(const std::string& title, const std::vector<StepMetrics>& metrics);

}  // namespace shoal::train
