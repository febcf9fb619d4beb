#pragma once

#include <string>
#include <vector>

namespace shoal {

/// Maps values to positions in a picture, linearly or logarithmically.
struct Axis {
  double low;
  double high;
  double from;
  double to;
  bool logarithmic = false;

  double operator()(double value) const;
};

/// Round values within the axis: at most `most` parts of 1, 2 or 5 times a power of ten, or every
/// 1, 2 and 5 of a decade.
std::vector<double> ticks(const Axis& axis, int most);

/// Escapes the characters of `text` that have a meaning in XML.
std::string escaped(const std::string& text);

}  // namespace shoal
