#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <type_traits>

namespace shoal {

/// Reads `text` that is one number and nothing else; a whole one has digits of `base`. Empty for
/// other text and for a number that T cannot hold.
template <class T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  T value{};
  const char* const end = text.data() + text.size();
  std::from_chars_result read;
  if constexpr (std::is_floating_point_v<T>) {
    read = std::from_chars(text.data(), end, value);
  } else {
    read = std::from_chars(text.data(), end, value, base);
  }
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

}  // namespace shoal
