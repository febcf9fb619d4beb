#include "shoal/base/figures.h"

#include <fmt/format.h>

#include <cmath>

namespace shoal {

std::string format_duration(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string format_si(double value) {
  const char* units[] = {"", " k", " M", " G", " T", " P"};
  int unit = 0;
  while (std::abs(value) >= 1000 && unit < 5) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.4g}", value) : fmt::format("{:.3g}{}", value, units[unit]);
}

std::string format_si(double value, const char* unit) {
  const std::string number = format_si(value);
  return number + (number.find(' ') == std::string::npos ? " " : "") + unit;
}

}  // namespace shoal
