#pragma once

#include <cstdint>
#include <cstring>

#include "shoal/wire/handshake.h"

namespace shoal::wire {

/// The words of a rank that connects, about itself, to TcpTransport.
struct PeerHello {
  std::int32_t rank = 0;
  std::int32_t size = 0;         ///< of the world
  std::uint8_t rail = 0;         ///< the number of this connection
  std::uint8_t attempt = 0;      ///< counts those that the rail has had before, modulo 256
  std::uint16_t rails = 1;       ///< of which there will be so many
  std::uint32_t connection = 0;  ///< a random number that all rails to this peer have in common

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
