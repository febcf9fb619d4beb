#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::train {

/// Return values as TOML writes them; numbers have as many digits as it takes to read the same bits
/// back.
std::string toml_text(bool value);
std::string toml_text(std::int64_t value);
std::string toml_text(double value);  ///< always recognisable as a floating-point number
std::string toml_text(const std::string& value);
std::string toml_text(const char* value) = delete;

template <class T>
std::string toml_text(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + toml_text(value);
  return text + "]";
}

/// Returns a number for people: 1000000 and not 1e+06, 0.5, 1e+12.
std::string number_text(double value);

}  // namespace shoal::train
