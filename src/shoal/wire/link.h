#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "shoal/wire/assembler.h"
#include "shoal/wire/closed_in_children.h"
#include "shoal/wire/flow_message.h"
#include "shoal/wire/local_rendezvous.h"
#include "shoal/wire/transport.h"
#include "shoal/wire/turns.h"

namespace shoal::wire {

/// One connection that carries many streams. Large messages are sent in chunks that take turns,
/// those of higher priority first, so that a small message waits for at most one chunk of each
/// stream. Of the large ones at most kMostBegun are on their way at a time, because the receiver
/// keeps an account of each. The socket is closed in processes that this one forks. Not
/// thread-safe.
class Link {
 public:
  static constexpr std::size_t kMostBegun = 1024;
  explicit Link(Descriptor socket, std::uint64_t most_bytes = std::uint64_t{1} << 42,
                std::shared_ptr<ChunkPool> pool = nullptr)
      : socket_(std::move(socket)),
        guard_(socket_.get()),
        assembler_(most_bytes, std::move(pool)) {}
  /// Releases all memory that is still to be sent.
  ~Link();
  Link(Link&&) = default;
  int fd() const { return socket_.get(); }

  /// Queues a message.
  void send(Stream stream, int priority, Bytes message);
  /// Queues a message of `head` and `body`. `body` is not copied: it is read until `released`.
  void send(Stream stream, int priority, Bytes head, std::span<const std::byte> body,
            Released released);
  /// Writes what the kernel and the receiver take. Returns false when the kernel takes no more.
  /// Throws Error(peer_lost).
  bool flush();
  /// Ends this direction: behind what was written the peer reads the end of the connection.
  void finish_sending();
  /// Reads once what is there, up to about a chunk. Returns false at the end of the connection.
  /// Throws Error(peer_lost) or Error(data).
  bool receive(ChunkSink& sink);
  /// As above, for whole messages.
  bool receive(const std::function<void(Stream, Bytes)>& message);
  void forget_places(std::optional<Stream> stream = std::nullopt) {
    assembler_.forget_places(stream);
  }

  /// Follows what the receiver says about the messages that it can take. While it has paused, only
  /// streams of group 0 and what it asks for are sent.
  void obey(const FlowMessage& message);

  /// Copies what is still to be sent of a stream, so that the callers' memory is released.
  void adopt(Stream stream);
  /// Drops all messages but those of group 0. A chunk that is partly written is completed from a
  /// copy of the chunk, because the receiver counts its bytes.
  void drop_all();
  /// Drops all messages without releasing their memory: what waits for it learns by other means
  /// that it was never sent.
  void abandon();

  /// Returns true when nothing is left to be written, of any stream or of one.
  bool idle() const { return queues_.empty() && writing_.empty(); }
  bool idle(Stream stream) const;
  std::uint64_t bytes_sent() const { return bytes_sent_; }  ///< headers included
  std::uint64_t bytes_received() const { return bytes_received_; }
  /// Counts the messages whose memory was released.
  std::uint64_t releases() const { return releases_; }

 private:
  struct Message {
    Bytes head;
    std::span<const std::byte> body;
    Bytes own_body;  ///< holds `body` once it is adopted
    Released released;
    std::size_t bytes() const { return head.size() + body.size(); }
  };
  /// Where a stream waits: among those that may be sent, those whose large message may not begin
  /// yet, or those of which the receiver takes no chunk at present.
  enum Line : std::uint8_t { kTurn, kLate, kHeld };
  /// The messages of one stream that are still to be divided into chunks.
  struct Queue {
    int priority = 0;
    std::deque<std::shared_ptr<Message>> messages;
    std::size_t at = 0;  // bytes of the first message that are in chunks already
    Line line = kTurn;
  };
  /// A chunk that is being written.
  struct Chunk {
    std::array<std::byte, Assembler::kHeaderBytes> header;
    Stream stream;
    std::shared_ptr<Message> message;
    std::size_t begin;
    std::size_t bytes;
    bool last;
    std::size_t sent = 0;  // header included
  };
  /// So many bytes are cut into chunks ahead of time: enough for one sendmsg, and few enough that
  /// an urgent message does not wait long behind them.
  static constexpr std::size_t kBytesAhead = 512 << 10;
  static constexpr std::size_t kMaxChunksAhead = 8;
  bool make_chunk();
  std::optional<Stream> next_stream();
  /// Those that were begun before the receiver paused may stay as they are: what it asks for does
  /// not wait for them.
  std::size_t most_begun() const { return paused_ ? Assembler::kMaxOpenStreams : kMostBegun; }
  void let_wait(Stream stream, Queue& queue, Line line);
  void keep_chunk_alone(Chunk& chunk);
  void wrote(std::size_t bytes);
  void release(Message& message);
  void copy_body(Message& message);
  bool receive_some(const std::function<void(std::size_t, std::span<const std::byte>)>& took);

  Descriptor socket_;
  ClosedInChildren guard_;
  Assembler assembler_;
  std::map<Stream, Queue> queues_;
  std::array<Turns, 3> lines_;  // by Line; each stream of queues_ waits in one of them
  std::size_t begun_ = 0;       // messages of which some chunks, not all, are cut
  bool paused_ = false;
  std::map<Stream, std::uint64_t> asked_;  // while paused: what the receiver takes all the same
  std::deque<Chunk> writing_;
  std::size_t writing_bytes_ = 0;
  Bytes buffer_;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t releases_ = 0;
};

}  // namespace shoal::wire
