#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "shoal/wire/local_rendezvous.h"

namespace shoal::wire {

/// Names a sequence of messages between two ends: within one they arrive in the order sent, different ones overtake each other.
struct Stream {
  std::uint64_t group = 0, sequence = 0;
  auto operator<=>(const Stream&) const = default;
};

using Bytes = std::vector<std::byte>;

/// Puts messages together from the chunks in which they travel. A chunk is a header of 32 bytes (magic, length, stream, bytes of the whole message)
/// and at most kChunkBytes. Memory grows with what has arrived, never with what was announced.
class Assembler {
 public:
  static constexpr std::size_t kChunkBytes = 256 << 10, kHeaderBytes = 32, kMostOpenStreams = 4096;
  explicit Assembler(std::uint64_t most_bytes = std::uint64_t{1} << 42) : most_bytes_(most_bytes) {}
  /// Takes any piece of the byte stream. Throws Error(data) for what no sender of ours writes; the connection is of no use then.
  void feed(std::span<const std::byte> bytes, const std::function<void(Stream, Bytes)>& message);

 private:
  struct Partial {
    std::uint64_t total = 0;
    Bytes bytes;
  };
  void open(std::span<const std::byte> header);
  void close_chunk(const std::function<void(Stream, Bytes)>& message);

  std::uint64_t most_bytes_;
  Bytes header_;                // of the current chunk, as far as it has arrived
  std::size_t chunk_left_ = 0;  // of the current chunk, once its header is complete
  Stream stream_;
  std::map<Stream, Partial> partial_;
};

/// One connection that carries many streams. Large messages go out in chunks that take turns, those of higher priority first, so that a small message
/// waits for one chunk at most of each stream. Not thread-safe.
class Link {
 public:
  explicit Link(Descriptor socket, std::uint64_t most_bytes = std::uint64_t{1} << 42) : socket_(std::move(socket)), assembler_(most_bytes) {}
  int fd() const { return socket_.get(); }
  void send(Stream stream, int priority, Bytes message);
  /// Writes what the kernel takes. False when something is left. Throws Error(peer_lost).
  bool flush();
  /// Reads what is there, but not for ever. False at the end of the connection. Throws Error(peer_lost) or Error(data).
  bool receive(const std::function<void(Stream, Bytes)>& message);
  bool idle() const { return flows_.empty() && chunk_sent_ == chunk_bytes(); }
  /// Nothing of `stream` is left to be written.
  bool idle(Stream stream) const { return !flows_.contains(stream); }

  std::uint64_t bytes_sent() const { return bytes_sent_; }  ///< headers included
  std::uint64_t bytes_received() const { return bytes_received_; }

 private:
  struct Flow {
    int priority = 0;
    std::deque<Bytes> messages;
    std::size_t at = 0;  // in the first message
  };
  std::size_t chunk_bytes() const { return chunk_header_.empty() ? 0 : chunk_header_.size() + chunk_length_; }
  void next_chunk();
  void end_chunk();

  Descriptor socket_;
  Assembler assembler_;
  std::map<Stream, Flow> flows_;
  std::deque<Stream> turns_;  // each stream of flows_ once
  Stream chunk_stream_;
  Bytes chunk_header_;            // empty: no chunk is on its way
  std::size_t chunk_length_ = 0;  // of its payload
  std::size_t chunk_sent_ = 0;    // header included
  Bytes buffer_;
  std::uint64_t bytes_sent_ = 0, bytes_received_ = 0;
};

}  // namespace shoal::wire
