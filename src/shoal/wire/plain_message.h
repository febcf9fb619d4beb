#pragma once

#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// Returns the bytes of a message that is plain data: both ends run the same program.
template <class Message>
Bytes encode_plain(const Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  Bytes bytes(sizeof message);
  std::memcpy(bytes.data(), &message, sizeof message);
  return bytes;
}

/// Returns nothing for bytes that are no such message.
template <class Message>
std::optional<Message> decode_plain(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<Message>);
  Message message;
  if (bytes.size() != sizeof message) return std::nullopt;
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}

}  // namespace shoal::wire
