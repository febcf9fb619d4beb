#include "shoal/base/svg.h"

#include <fmt/format.h>

#include <cmath>

namespace shoal::svg {
namespace {

constexpr const char* kGrid = "stroke=\"#e3e3e3\"";

/// A round distance of 1, 2 or 5 times a power of ten that cuts `span` into at most `most` parts.
double round_step(double span, int most) {
  const double power = std::pow(10, std::floor(std::log10(span / most)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (span / (factor * power) <= most) return factor * power;
  return 10 * power;
}

}  // namespace

std::vector<double> ticks(const Axis& axis, int most) {
  std::vector<double> values;
  if (axis.logarithmic) {
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
  const double step = round_step(axis.high - axis.low, most);
  for (double value = std::ceil(axis.low / step - 1e-9) * step; value <= axis.high + 1e-9 * step;
       value += step)
    values.push_back(std::abs(value) < 1e-9 * step ? 0 : value);
  return values;
}

double Axis::operator()(double value) const {
  const double part =
      logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return from + (to - from) * part;
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

std::string opening(double width, double height, double left, const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"{2}\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{3}\" y=\"30\" font-size=\"17\">{4}</text>\n",
      width, height, kInk, left, escaped(title));
}

std::string label(double x, double y, const std::string& text, const char* anchor) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, const std::string& look) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, look);
}

std::string legend(double x, double y,
                   const std::vector<std::pair<const char*, std::string>>& entries) {
  std::string text;
  for (const auto& [color, meaning] : entries) {
    text +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"12\" fill=\"{}\"/>\n", x,
                    y - 10, color);
    text += label(x + 20, y, meaning);
    y += 20;
  }
  return text;
}

std::string left_scale(const Axis& y, double left, double right, const std::string& unit) {
  std::string text;
  for (const double value : ticks(y, 9)) {
    text += line(left, y(value), right, y(value), kGrid);
    text += label(left - 8, y(value) + 4, fmt::format("{:.6g}", value), "end");
  }
  if (unit.empty()) return text;
  return text + fmt::format(
                    "<text transform=\"translate({:.1f},{:.1f}) rotate(-90)\" "
                    "text-anchor=\"middle\">{}</text>\n",
                    left - 56, (y.from + y.to) / 2, escaped(unit));
}

std::string bottom_scale(const Axis& x, double top, double bottom, const std::string& unit) {
  std::string text;
  for (const double value : ticks(x, 8)) {
    text += line(x(value), top, x(value), bottom, kGrid);
    text += label(x(value), bottom + 18, fmt::format("{:.9g}", value), "middle");
  }
  return text + label((x.from + x.to) / 2, bottom + 40, unit, "middle");
}

}  // namespace shoal::svg
