#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "shoal/wire/assembler.h"
#include "shoal/wire/local_rendezvous.h"
#include "shoal/wire/transport.h"

namespace shoal::wire {

/// One connection that carries many streams. Large messages are sent in chunks that take turns,
/// those of higher priority first, so that a small message waits for at most one chunk of each
/// stream. Not thread-safe.
class Link {
 public:
  explicit Link(Descriptor socket, std::uint64_t most_bytes = std::uint64_t{1} << 42,
                std::shared_ptr<ChunkPool> pool = nullptr)
      : socket_(std::move(socket)), assembler_(most_bytes, std::move(pool)) {}
  /// Releases all memory that is still to be sent.
  ~Link();
  Link(Link&&) = default;
  int fd() const { return socket_.get(); }

  /// Queues a message.
  void send(Stream stream, int priority, Bytes message);
  /// Queues a message of `head` and `body`. `body` is not copied: it is read until `released`.
  void send(Stream stream, int priority, Bytes head, std::span<const std::byte> body,
            Released released);
  /// Writes what the kernel takes. Returns false when something is left. Throws Error(peer_lost).
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

  /// Copies what is still to be sent of a stream, so that the callers' memory is released.
  void adopt(Stream stream);
  /// Drops all messages but those of group 0. A chunk that is partly written is completed from a
  /// copy, because the receiver counts its bytes.
  void drop_all();

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
  /// The messages of one stream that are still to be divided into chunks.
  struct Queue {
    int priority = 0;
    std::deque<std::shared_ptr<Message>> messages;
    std::size_t at = 0;  // bytes of the first message that are in chunks already
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
  void make_chunk();
  void wrote(std::size_t bytes);
  void release(Message& message);
  void copy_body(Message& message);
  bool receive_some(const std::function<void(std::size_t, std::span<const std::byte>)>& took);

  Descriptor socket_;
  Assembler assembler_;
  std::map<Stream, Queue> queues_;
  std::deque<Stream> turns_;  // each stream of queues_ once
  std::deque<Chunk> writing_;
  std::size_t writing_bytes_ = 0;
  Bytes buffer_;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t releases_ = 0;
};

}  // namespace shoal::wire
