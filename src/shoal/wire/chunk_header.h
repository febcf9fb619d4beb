#pragma once

#include <cstdint>

#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// Precedes every chunk on a connection.
struct ChunkHeader {
  std::uint32_t magic = 0x314c4853;  // "SHL1"
  std::uint32_t length = 0;          ///< bytes of the chunk
  Stream stream;
  std::uint64_t total = 0;  ///< bytes of the whole message
};
static_assert(sizeof(ChunkHeader) == Assembler::kHeaderBytes);

}  // namespace shoal::wire
