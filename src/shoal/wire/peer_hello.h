#pragma once

#include <cstdint>
#include <cstring>

#include "shoal/wire/handshake.h"
#include "shoal/wire/peer_id.h"
#include "shoal/wire/tls_mode.h"

namespace shoal::wire {

/// The words of a rank about itself, to another one's TcpTransport: of the one that connects, and
/// then of the one that listens, which says its rank, the size of the world, `tls` and `id`.
struct PeerHello {
  std::int32_t rank = 0;
  std::int32_t size = 0;  ///< of the world
  std::uint8_t rail = 0;  ///< the number of this connection
  /// Counts those that the rail has had before, modulo 256; of rail 0 as in FirstRailAccount.
  std::uint8_t attempt = 0;
  std::uint16_t rails = 1;       ///< of which there will be so many
  std::uint32_t connection = 0;  ///< a random number that all rails to this peer have in common
  TlsMode tls = TlsMode::kAuto;
  std::uint8_t encrypted = 0;  ///< 1: TLS follows on this connection
  std::uint16_t unused = 0;
  PeerId id;  ///< of the certificate that the rank shows

  Hello encode() const {
    Hello hello;
    std::memcpy(hello.data(), this, sizeof *this);
    return hello;
  }
  static PeerHello decode(const Hello& hello) {
    PeerHello decoded;
    std::memcpy(&decoded, hello.data(), sizeof decoded);
    return decoded;
  }
};
static_assert(sizeof(PeerHello) == sizeof(Hello));

}  // namespace shoal::wire
