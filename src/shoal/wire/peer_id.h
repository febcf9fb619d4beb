#pragma once

#include <array>
#include <cstddef>

namespace shoal::wire {

/// Who a process is towards its peers: the first 16 bytes of the SHA-256 of its public key. Nobody
/// else can have it, because nobody else has the private key.
struct PeerId {
  std::array<std::byte, 16> bytes{};
  bool operator==(const PeerId&) const = default;
};

}  // namespace shoal::wire
