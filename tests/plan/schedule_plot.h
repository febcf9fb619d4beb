#pragma once

#include <string>
#include <vector>

#include "shoal/schedule/action.h"

namespace shoal::plan {

/// Draws pipeline schedules (SVG) below each other on one scale of time: when each rank computes
/// what, how many micro-batches it holds activations of meanwhile, and every message from the rank
/// that computed it to the rank that reads it. Forward, input gradient and weight gradient of all
/// stages of a rank together take one unit of time each, and a message a twentieth of one. Above
/// each stand the share of the time that is lost and the most that a rank holds. Throws what
/// `schedule::check` throws.
std::string schedule_plot(const std::string& title,
                          const std::vector<schedule::Schedule>& schedules);

}  // namespace shoal::plan
