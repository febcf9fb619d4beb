#pragma once

#include <string>

namespace shoal {

/// Returns a duration in words, rounded to seconds: "3 s", "4 min 05 s", "2 h 07 min".
std::string format_duration(double seconds);
/// Returns e.g. "950", "12.4 k", "3.1 M".
std::string format_si(double value);
/// Returns e.g. "950 FLOPs", "12.4 kFLOPs".
std::string format_si(double value, const char* unit);

}  // namespace shoal
