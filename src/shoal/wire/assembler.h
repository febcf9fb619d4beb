#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shoal/wire/received_chunk.h"

namespace shoal::wire {

/// Names a sequence of messages between two ranks. Messages of one stream arrive in the order sent;
/// those of different streams overtake each other.
struct Stream {
  std::uint64_t group = 0;
  std::uint64_t sequence = 0;
  auto operator<=>(const Stream&) const = default;
};

using Bytes = std::vector<std::byte>;

/// Takes the chunks of messages as they arrive. An Assembler of pieces names what it passes on by
/// the number of the message, as `stream.group`.
class ChunkSink {
 public:
  virtual ~ChunkSink() = default;
  /// Returns where bytes `[offset, offset + bytes)` of the stream's current message go, which is
  /// `total` bytes long; null puts them into a ReceivedChunk.
  virtual std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset,
                           std::size_t bytes) = 0;
  /// Tells that the bytes have arrived. `chunk` has no memory where `place` has named some.
  virtual void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) = 0;
  /// Passes on the last words of the peer, which a connection of pieces carries outside of any
  /// message.
  virtual void last_words(std::span<const std::byte>) {}
  /// Passes on a piece for which `place` had no place, because it has come or was coming already.
  virtual void duplicate(Stream, ReceivedChunk) {}
  /// Tells that the next message of the stream has `total` bytes and comes on other connections.
  virtual void announced(Stream, std::uint64_t) {}
};

/// Puts messages together from the chunks in which they travel. A chunk is a header of 32 bytes
/// (magic, length, stream, bytes of the whole message) and at most kChunkBytes; only the last chunk
/// of a message is shorter. Memory grows with what has arrived, never with what was announced.
/// A peer with several connections sends small messages on one of them, and announcements of the
/// others, whose pieces the rest carry: at most kPieceBytes behind a header that says where they
/// belong.
class Assembler {
 public:
  static constexpr std::size_t kChunkBytes = 256 << 10;
  static constexpr std::size_t kPieceBytes = 16 << 10;
  static constexpr std::size_t kHeaderBytes = 32;
  static constexpr std::size_t kMaxOpenStreams = 4096;
  enum class Carries : std::uint8_t { kMessages, kMessagesAndAnnouncements, kPieces };
  explicit Assembler(std::uint64_t most_bytes = std::uint64_t{1} << 42,
                     std::shared_ptr<ChunkPool> pool = nullptr,
                     Carries carries = Carries::kMessages);

  /// Returns where the next bytes of the connection belong: the rest of a header or of a chunk.
  /// Never empty.
  std::span<std::byte> wanted();
  bool within_chunk() const { return header_bytes_ == kHeaderBytes; }
  /// Tells that the first `bytes` of `wanted()` have been filled. Throws Error(data) for bytes that
  /// no sender of Shoal writes, and whatever the sink throws; the connection is of no use then.
  void took(std::size_t bytes, ChunkSink& sink);
  /// Takes any part of the byte stream, by copy. Throws as `took`.
  void feed(std::span<const std::byte> bytes, ChunkSink& sink);
  /// As above, but collects whole messages in memory of their own.
  void took(std::size_t bytes, const std::function<void(Stream, Bytes)>& message);
  void feed(std::span<const std::byte> bytes, const std::function<void(Stream, Bytes)>& message);
  /// Ends the use of memory that a sink has named, for `stream` or for all streams. The rest of a
  /// chunk that was to go there goes into a ReceivedChunk, which is incomplete and of no use.
  void forget_places(std::optional<Stream> stream = std::nullopt);
  /// Returns the message and the offset of the piece that is arriving; `placed_piece` of one that
  /// is arriving where a sink has said.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> arriving_piece() const;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> placed_piece() const;
  /// The piece that is arriving has come on another connection: the rest of it goes into a
  /// ReceivedChunk, which is incomplete and of no use.
  void supersede_piece();

 private:
  class WholeMessages;
  struct Partial {
    std::uint64_t total = 0;
    std::uint64_t arrived = 0;
  };
  bool open(ChunkSink& sink);
  bool open_piece(ChunkSink& sink);
  [[noreturn]] static void reject(const char* why, std::uint32_t magic, std::uint64_t length,
                                  std::uint64_t total);
  void close(ChunkSink& sink);

  const std::uint64_t most_bytes_;
  std::shared_ptr<ChunkPool> pool_;
  const Carries carries_;
  std::byte header_[kHeaderBytes];
  std::size_t header_bytes_ = 0;  // of the current chunk, as far as it has arrived
  // The current chunk, once its header is complete.
  Stream stream_;
  Partial message_;  // up to this chunk, excluding it
  std::size_t length_ = 0;
  std::size_t filled_ = 0;
  std::byte* to_ = nullptr;
  bool placed_ = false;
  bool duplicate_ = false;  // a piece that has come, or was coming, on another connection
  ReceivedChunk chunk_;
  std::map<Stream, Partial> partial_;  // messages of which some chunks, not all, have arrived
  std::map<Stream, Bytes> whole_;      // their bytes, where whole messages are wanted
};

}  // namespace shoal::wire
