#pragma once

#include <string>
#include <vector>

namespace shoal {

/// Values to a stretch of a picture, linear or logarithmic.
struct Axis {
  double low, high, from, to;
  bool logarithmic = false;

  double operator()(double value) const;
};

/// Round values within the axis: at most `most` parts of 1, 2 or 5 times a power of ten, or every
/// 1, 2 and 5 of a decade.
std::vector<double> ticks(const Axis& axis, int most);

/// Text as XML has it.
std::string escaped(const std::string& text);

}  // namespace shoal
