#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal::wire {

/// Which TCP connections between ranks run TLS. All ranks of a job have the same mode.
enum class TlsMode : std::uint8_t {
  kAuto,  ///< those that leave the host
  kOn,    ///< all
  kOff,   ///< none
};

/// The words that stand for them in job files and variables, in their order.
constexpr std::array kTlsModes{"auto", "on", "off"};

constexpr const char* name(TlsMode mode) {
  const auto index = static_cast<std::size_t>(mode);
  return index < kTlsModes.size() ? kTlsModes[index] : "?";
}

constexpr std::optional<TlsMode> parse_tls_mode(std::string_view text) {
  for (std::size_t i = 0; i < kTlsModes.size(); ++i)
    if (text == kTlsModes[i]) return static_cast<TlsMode>(i);
  return std::nullopt;
}

}  // namespace shoal::wire
