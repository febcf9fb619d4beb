#pragma once

#include <string>
#include <utility>
#include <vector>

/// Parts of SVG pictures as text.
namespace shoal::svg {

inline constexpr const char* kInk = "#333";

/// Maps values to positions in a picture, linearly or logarithmically.
struct Axis {
  double low;
  double high;
  double from;
  double to;
  bool logarithmic = false;

  double operator()(double value) const;
};

/// Returns the round values within an axis: they cut it into at most `most` parts of 1, 2 or 5
/// times a power of ten; a logarithmic one has 1, 2 and 5 of every decade.
std::vector<double> ticks(const Axis& axis, int most);

/// Escapes the characters of `text` that have a meaning in XML.
std::string escaped(const std::string& text);

/// Begins a picture on white, with its title at `left`; "</svg>" ends it.
std::string opening(double width, double height, double left, const std::string& title);
/// `anchor`: "start", "middle" or "end".
std::string label(double x, double y, const std::string& text, const char* anchor = "start");
/// `look`: the attributes of the stroke.
std::string line(double x1, double y1, double x2, double y2, const std::string& look);
/// Draws entries of a color and its meaning below each other.
std::string legend(double x, double y,
                   const std::vector<std::pair<const char*, std::string>>& entries);
/// Draws a vertical axis: lines across at round values, numbers at the left, and the unit upright
/// beside them.
std::string left_scale(const Axis& y, double left, double right, const std::string& unit = "");
/// Draws a horizontal axis: lines upward at round values, numbers below, and the unit.
std::string bottom_scale(const Axis& x, double top, double bottom, const std::string& unit);

}  // namespace shoal::svg
