#pragma once

#include <string>

#include "shoal/schedule/timeline.h"

namespace shoal::plan {

/// A timeline in the Trace Event format that Perfetto and chrome://tracing open: one track a rank, one slice an action, microseconds.
std::string to_trace(const schedule::Timeline& timeline);

/// The same as a drawing: one row a rank, forwards blue, input gradients (and whole backwards) orange, weight gradients green, numbered by
/// micro-batch.
std::string to_svg(const schedule::Timeline& timeline, const std::string& title);

}  // namespace shoal::plan
