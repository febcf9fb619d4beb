#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "shoal/wire/assembler.h"
#include "shoal/wire/plain_message.h"

namespace shoal::wire {

/// The message of a receiver, on rail 0, about the pieces that have come on another rail. Pieces of
/// one rail arrive in the order sent, so their number says which. Of rail 0 itself it tells the
/// chunks that have come over all its connections, see FirstRailAccount.
struct RailReport {
  std::uint16_t rail = 0;
  std::uint16_t connection = 0;  ///< of those that the rail has had, counted from 0
  std::uint32_t closed = 0;      ///< 1: it has closed this connection, and the number is final
  std::uint64_t pieces = 0;      ///< that have come over this connection

  Bytes encode() const { return encode_plain(*this); }
  /// Returns nothing for bytes that are no such message.
  static std::optional<RailReport> decode(std::span<const std::byte> bytes) {
    return decode_plain<RailReport>(bytes);
  }
  bool operator==(const RailReport&) const = default;
};

}  // namespace shoal::wire
