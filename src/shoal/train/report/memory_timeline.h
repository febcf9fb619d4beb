#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/base/memory_category.h"

namespace shoal::train {

/// What a rank held at one moment of a step.
struct MemoryMark {
  std::int64_t step = 0;
  double ms = 0;  ///< since the step began
  std::string
      where;  ///< what is just done, or begins: "forward blocks.3", "backward blocks.3", "update"
  std::array<double, kMemoryCategories> categories{};  ///< bytes in use now
  double peak = 0;                                     ///< most bytes in use since the mark before
};

/// A table for any program: a line of names (step, ms, where, peak_bytes, and bytes by category),
/// then a line for each mark.
std::string to_csv(const std::vector<MemoryMark>& marks);

/// The marks of one step, the last of which there are any, as an SVG picture: categories one on the
/// other over time, and the peaks between.
std::string memory_plot(const std::string& title, const std::vector<MemoryMark>& marks);

}  // namespace shoal::train
