#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <span>
#include <string>

#include "shoal/base/hex.h"

namespace shoal::wire {

/// Who a process is towards its peers: the first 16 bytes of the SHA-256 of its public key. Nobody
/// else can have it, because nobody else has the private key.
struct PeerId {
  std::array<std::byte, 16> bytes{};
  /// Returns the first four bytes in hexadecimal, for messages.
  std::string text() const { return hex(std::span(bytes).first<4>()); }
  auto operator<=>(const PeerId&) const = default;
};

}  // namespace shoal::wire
