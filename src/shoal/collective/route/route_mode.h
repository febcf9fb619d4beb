#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal::collective {

/// Which ways messages take between ranks that are far apart. All ranks of a job have the same
/// mode.
enum class RouteMode : std::uint8_t {
  kNatural,   ///< nothing is measured, and rings go in the order of ranks
  kMeasured,  ///< links are measured when ranks have met, see Fabric
};

/// The words that stand for them in job files and variables, in their order.
constexpr std::array kRouteModes{"natural", "measured"};

constexpr const char* name(RouteMode mode) {
  const auto index = static_cast<std::size_t>(mode);
  return index < kRouteModes.size() ? kRouteModes[index] : "?";
}

constexpr std::optional<RouteMode> parse_route_mode(std::string_view text) {
  for (std::size_t i = 0; i < kRouteModes.size(); ++i)
    if (text == kRouteModes[i]) return static_cast<RouteMode>(i);
  return std::nullopt;
}

}  // namespace shoal::collective
