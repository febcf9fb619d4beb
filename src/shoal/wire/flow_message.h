#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "shoal/wire/assembler.h"
#include "shoal/wire/plain_message.h"

namespace shoal::wire {

/// The message of a receiver to a sender about the messages that it can take. All travel on one
/// stream, so that they arrive in the order sent.
struct FlowMessage {
  enum What : std::uint64_t {
    kPause,   ///< too much waits here: send nothing but what is asked for
    kResume,  ///< send everything; what was asked for before counts no more
    kAsk,     ///< while paused, send `bytes` more of `stream`
  };
  std::uint64_t what = kPause;
  Stream stream;
  std::uint64_t bytes = 0;

  Bytes encode() const { return encode_plain(*this); }
  /// Returns nothing for bytes that are no such message.
  static std::optional<FlowMessage> decode(std::span<const std::byte> bytes) {
    return decode_plain<FlowMessage>(bytes);
  }
  bool operator==(const FlowMessage&) const = default;
};

/// Returns the bytes that a chunk takes of a window and of what was asked for: its own and its
/// header, so that chunks without bytes count too.
constexpr std::uint64_t window_cost(std::uint64_t chunk_bytes) {
  return chunk_bytes + Assembler::kHeaderBytes;
}

}  // namespace shoal::wire
