#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace shoal {

/// Returns two digits for each byte, lower-case.
inline std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += digits[std::to_integer<std::size_t>(byte >> 4)];
    text += digits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace shoal
