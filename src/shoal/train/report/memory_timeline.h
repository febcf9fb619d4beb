#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/base/memory_category.h"
#include "shoal/train/report/pixels.h"

namespace shoal::train {

/// The memory of a rank at one moment of a step.
struct MemoryMark {
  std::int64_t step = 0;
  double ms = 0;  ///< since the step began
  /// The pass that has just ended or begins: "forward blocks.3", "backward blocks.3", "update".
  std::string where;
  std::array<double, kMemoryCategories> categories{};  ///< bytes in use now
  double peak = 0;                                     ///< most bytes in use since the mark before
};

/// Writes CSV: a line of names (step, ms, where, peak_bytes, and bytes by category), then a line
/// for each mark.
std::string to_csv(const std::vector<MemoryMark>& marks);

/// Draws the marks of the last recorded step as SVG: stacked categories over time, and the peaks
/// between marks.
std::string memory_plot(const std::string& title, const std::vector<MemoryMark>& marks);

/// Draws the same in pixels, for TensorBoard: stacked categories, time from left to right, and the
/// peaks in black.
Pixels memory_pixels(const std::vector<MemoryMark>& marks);
/// Returns what the axes and colours of that picture are: one line.
std::string memory_legend(const std::vector<MemoryMark>& marks);

}  // namespace shoal::train
