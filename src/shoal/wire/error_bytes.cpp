#include "shoal/wire/error_bytes.h"

#include <cstring>
#include <string>

namespace shoal::wire {
namespace {

constexpr std::size_t kMostText = 16 << 10;

/// Precedes the four texts, whose lengths it has: operation, message, awaited, hint.
struct ErrorHeader {
  std::uint32_t kind = 0;
  std::int32_t rank = -1;
  std::int32_t size = -1;
  std::int32_t peer = -1;
  std::uint64_t sequence = 0;
  std::uint32_t lengths[4] = {};
};

Bytes encode_with(const Error& error, std::size_t most_text) {
  ErrorHeader header{static_cast<std::uint32_t>(error.kind()),
                     error.rank(),
                     error.size(),
                     error.peer(),
                     error.sequence(),
                     {}};
  const std::string texts[] = {
      error.operation().substr(0, most_text), error.message().substr(0, most_text),
      error.awaited().substr(0, most_text), error.hint().substr(0, most_text)};
  Bytes bytes(sizeof header);
  for (int i = 0; i < 4; ++i) {
    header.lengths[i] = static_cast<std::uint32_t>(texts[i].size());
    const auto* text = reinterpret_cast<const std::byte*>(texts[i].data());
    bytes.insert(bytes.end(), text, text + texts[i].size());
  }
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

}  // namespace

Bytes encode(const Error& error, std::size_t most_bytes) {
  Bytes whole = encode_with(error, kMostText);
  if (whole.size() <= most_bytes) return whole;
  return encode_with(error, (most_bytes - sizeof(ErrorHeader)) / 4);
}

Error decode_error(std::span<const std::byte> bytes) {
  const Error unreadable(ErrorKind::kAborted, "abort",
                         "another rank stopped the job; its error report cannot be read");
  // The bytes come from another process, perhaps of another version: every length and the kind are
  // checked before use.
  ErrorHeader header;
  if (bytes.size() < sizeof header) return unreadable;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::string texts[4];
  std::size_t at = sizeof header;
  for (int i = 0; i < 4; ++i) {
    if (header.lengths[i] > kMostText || header.lengths[i] > bytes.size() - at) return unreadable;
    texts[i].assign(reinterpret_cast<const char*>(bytes.data()) + at, header.lengths[i]);
    at += header.lengths[i];
  }
  if (header.kind > static_cast<std::uint32_t>(ErrorKind::kAborted)) return unreadable;
  Error error(static_cast<ErrorKind>(header.kind), texts[0], texts[1]);
  return error.at(header.rank, header.size)
      .from(header.peer)
      .in(header.sequence)
      .awaiting(texts[2])
      .hint(texts[3]);
}

}  // namespace shoal::wire
