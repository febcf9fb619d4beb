#include "shoal/train/config/toml_text.h"

#include <fmt/format.h>

#include <cmath>

namespace shoal::train {

std::string toml_text(bool value) { return value ? "true" : "false"; }

std::string toml_text(std::int64_t value) { return fmt::format("{}", value); }

std::string toml_text(double value) {
  std::string text =
      fmt::format("{}", value);  // the shortest text that reads back as the same bits
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string toml_text(const std::string& value) {
  std::string text = "\"";
  for (const unsigned char c : value) {
    if (c == '"' || c == '\\') {
      text += '\\';
      text += static_cast<char>(c);
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      text += fmt::format("\\u{:04X}", c);
    } else {
      text += static_cast<char>(c);
    }
  }
  return text + '"';
}

std::string number_text(double value) {
  if (value == std::floor(value) && std::abs(value) <= 1e9)
    return fmt::format("{}", static_cast<std::int64_t>(value));
  return fmt::format("{:g}", value);
}

}  // namespace shoal::train
