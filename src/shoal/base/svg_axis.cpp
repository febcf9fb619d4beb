#include "shoal/base/svg_axis.h"

#include <cmath>

namespace shoal {
namespace {

/// A round distance of 1, 2 or 5 times a power of ten that cuts `span` into at most `most` parts.
double round_step(double span, int most) {
  const double power = std::pow(10, std::floor(std::log10(span / most)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (span / (factor * power) <= most) return factor * power;
  return 10 * power;
}

}  // namespace

double Axis::operator()(double value) const {
  const double part =
      logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return from + (to - from) * part;
}

std::vector<double> ticks(const Axis& axis, int most) {
  std::vector<double> values;
  if (axis.logarithmic) {
    // The tolerance keeps a tick that lies on the border although pow and log10 rounded it across.
    for (double power = std::pow(10, std::floor(std::log10(axis.low))); power <= axis.high;
         power *= 10) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        if (const double value = factor * power;
            value >= axis.low * 0.999 && value <= axis.high * 1.001)
          values.push_back(value);
      }
    }
    return values;
  }
  // The tolerance of 1e-9 steps does the same here; what is nearly zero is written as 0, not as
  // 1e-17.
  const double step = round_step(axis.high - axis.low, most);
  for (double value = std::ceil(axis.low / step - 1e-9) * step; value <= axis.high + 1e-9 * step;
       value += step)
    values.push_back(std::abs(value) < 1e-9 * step ? 0 : value);
  return values;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace shoal
