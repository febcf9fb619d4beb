#pragma once

#include <cstdint>

#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// Precedes every chunk of a message on a connection. If a peer has several connections, one
/// without bytes that names a length announces a message that comes in pieces.
struct ChunkHeader {
  std::uint32_t magic = 0x314c4853;  // "SHL1"
  std::uint32_t length = 0;          ///< bytes of the chunk
  Stream stream;
  std::uint64_t total = 0;  ///< bytes of the whole message
};
static_assert(sizeof(ChunkHeader) == Assembler::kHeaderBytes);

/// Precedes every piece of an announced message. Number kLastWords is no such message: these bytes,
/// one piece at most, are why the peer has failed, and each connection may carry them. kBeat has no
/// bytes: it says that the peer lives, while the first connection does not.
struct PieceHeader {
  static constexpr std::uint64_t kLastWords = ~std::uint64_t{0};
  static constexpr std::uint64_t kBeat = kLastWords - 1;
  std::uint32_t magic = 0x324c4853;  // "SHL2"
  std::uint32_t length = 0;          ///< bytes of the piece
  std::uint64_t message = 0;         ///< counts the announcements before that of the message
  std::uint64_t offset = 0;          ///< of the piece in the message
  std::uint64_t total = 0;           ///< bytes of the whole message
};
static_assert(sizeof(PieceHeader) == Assembler::kHeaderBytes);

}  // namespace shoal::wire
