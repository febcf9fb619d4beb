#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "shoal/wire/assembler.h"
#include "shoal/wire/received_chunk.h"

namespace shoal::wire {

/// Puts in order what arrives from one peer on several connections: the messages and announcements
/// of the first one, and the pieces of announced messages of the others. A ChunkSink gets what one
/// connection would have brought: the messages of a stream in the order sent, each in chunks of
/// Assembler::kChunkBytes from its beginning on. Only the order among streams may differ.
///
/// Pieces go straight to where the sink wants their message, once that is the current one of its
/// stream. Others, and small messages behind one that is not complete, are held here. The missing
/// part has been sent, so what is held is passed on whatever the sender does next. Not thread-safe.
class Gathering {
 public:
  /// Messages that are announced, or of which a piece has come, and that are not complete. A sender
  /// begins 1,024 at a time; the rest of these are what its kernel may have taken.
  static constexpr std::size_t kMostOpen = 1 << 16;

  explicit Gathering(std::shared_ptr<ChunkPool> pool) : pool_(std::move(pool)) {}

  /// Sinks for the assemblers of the first connection and of the others, which pass on to `out`.
  class Messages;
  class Pieces;

  /// Ends the use of memory that a sink has named, for `stream` or for all streams. The chunks that
  /// were to go there are passed on with memory of their own, whose contents are of no use.
  void forget_places(std::optional<Stream> stream);
  /// A piece that was arriving is lost: it comes again on another connection.
  void lose_piece(std::uint64_t message, std::uint64_t offset);
  /// Returns true where the chunk of the piece goes to memory that a sink has named, for `stream`
  /// or for any.
  bool is_placed(std::uint64_t message, std::uint64_t offset, std::optional<Stream> stream) const;

  /// Returns true when nothing is missing.
  bool complete() const { return open_.empty(); }
  /// Returns the bytes of what is held.
  std::uint64_t held_bytes() const { return held_bytes_; }

 private:
  /// A chunk of an announced message.
  struct Part {
    ReceivedChunk memory;  ///< where `placed` is null
    std::byte* placed = nullptr;
    std::uint32_t begun = 0;  ///< a bit for each piece
    std::uint32_t come = 0;   ///< as above: it is here whole
    std::size_t arrived = 0;  ///< bytes
    std::size_t bytes = 0;
  };
  struct Open {
    std::uint64_t total = 0;
    std::optional<Stream> stream;         ///< once it is announced
    std::uint64_t passed_on = 0;          ///< bytes
    std::map<std::uint64_t, Part> parts;  ///< by offset: those that are not passed on
  };
  /// A part that a stream has to pass on: an announced message, or a chunk of a small one.
  struct Item {
    std::optional<std::uint64_t> message;
    ReceivedChunk chunk;
    std::size_t bytes = 0;
  };
  std::byte* place_piece(std::uint64_t message, std::uint64_t total, std::uint64_t offset,
                         ChunkSink& out);
  void piece_arrived(std::uint64_t message, std::uint64_t offset, std::size_t bytes,
                     ChunkSink& out);
  /// Returns true where the piece was missing: it counts from now on.
  bool duplicate_arrived(std::uint64_t message, const ReceivedChunk& piece);
  bool announced(Stream stream, std::uint64_t total, ChunkSink& out);
  void hold(Stream stream, ReceivedChunk chunk, std::size_t bytes);
  void pass_on(Stream stream, ChunkSink& out);
  bool pass_on_message(std::uint64_t message, ChunkSink& out);
  bool is_current(std::uint64_t message, const Open& open) const;

  std::shared_ptr<ChunkPool> pool_;
  std::map<std::uint64_t, Open> open_;  ///< by number
  std::uint64_t announced_ = 0;         ///< messages
  std::map<Stream, std::deque<Item>> waiting_;
  std::uint64_t held_bytes_ = 0;
};

class Gathering::Messages final : public ChunkSink {
 public:
  Messages(Gathering& gathering, ChunkSink& out) : gathering_(gathering), out_(out) {}
  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset,
                   std::size_t bytes) override;
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override;
  void announced(Stream stream, std::uint64_t total) override;

 private:
  Gathering& gathering_;
  ChunkSink& out_;
};

class Gathering::Pieces final : public ChunkSink {
 public:
  using Superseded = std::function<void(std::uint64_t message, std::uint64_t offset)>;
  /// `pieces` counts those that have come. `superseded` is called before a piece is used that came
  /// twice: on whichever connection the other copy is still arriving, it is not to be written where
  /// it was placed.
  Pieces(Gathering& gathering, ChunkSink& out, std::uint64_t& pieces, Superseded superseded = {})
      : gathering_(gathering), out_(out), pieces_(pieces), superseded_(std::move(superseded)) {}
  std::byte* place(Stream message, std::uint64_t total, std::uint64_t offset,
                   std::size_t) override {
    return gathering_.place_piece(message.group, total, offset, out_);
  }
  void arrived(Stream message, ReceivedChunk piece, std::size_t bytes) override {
    ++pieces_;
    gathering_.piece_arrived(message.group, piece.offset(), bytes, out_);
  }
  void duplicate(Stream message, ReceivedChunk piece) override;
  void last_words(std::span<const std::byte> words) override { out_.last_words(words); }

 private:
  Gathering& gathering_;
  ChunkSink& out_;
  std::uint64_t& pieces_;
  Superseded superseded_;
};

}  // namespace shoal::wire
