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

/// One connection that carries many streams. Large messages go out in chunks that take turns, those
/// of higher priority first, so that a small message waits for one chunk at most of each stream.
/// Not thread-safe.
class Link {
 public:
  explicit Link(Descriptor socket, std::uint64_t most_bytes = std::uint64_t{1} << 42,
                std::shared_ptr<ChunkPool> pool = nullptr)
      : socket_(std::move(socket)), assembler_(most_bytes, std::move(pool)) {}
  /// Releases all that is still to be sent.
  ~Link();
  Link(Link&&) = default;
  int fd() const { return socket_.get(); }

  /// Queues a message.
  void send(Stream stream, int priority, Bytes message);
  /// Queues a message that consists of `head` and of `body`, which is read where it lies until
  /// `released`.
  void send(Stream stream, int priority, Bytes head, std::span<const std::byte> body,
            Released released);
  /// Writes what the kernel takes. False when something is left. Throws Error(peer_lost).
  bool flush();
  /// Reads once what is there, up to about a chunk. False at the end of the connection. Throws
  /// Error(peer_lost) or Error(data).
  bool receive(Intake& intake);
  /// The same, for whole messages.
  bool receive(const std::function<void(Stream, Bytes)>& message);
  void forget_places(std::optional<Stream> stream = std::nullopt) {
    assembler_.forget_places(stream);
  }

  /// Copies what is still to be sent of a stream, so that it is released.
  void adopt(Stream stream);
  /// Gives up all messages but those of group 0; what has begun is completed from a copy.
  void drop_all();

  bool idle() const { return flows_.empty() && cut_.empty(); }
  /// Nothing of `stream` is left to be written.
  bool idle(Stream stream) const;
  std::uint64_t bytes_sent() const { return bytes_sent_; }  ///< headers included
  std::uint64_t bytes_received() const { return bytes_received_; }
  std::uint64_t releases() const {
    return releases_;
  }  ///< counts messages of which nothing is read any more

 private:
  struct Message {
    Bytes head;
    std::span<const std::byte> body;
    Bytes own_body;  ///< where `body` lies once it is adopted
    Released released;
    std::size_t bytes() const { return head.size() + body.size(); }
  };
  struct Flow {
    int priority = 0;
    std::deque<std::shared_ptr<Message>> messages;
    std::size_t at = 0;  // in the first message
  };
  /// A chunk that has got its turn.
  struct Chunk {
    std::array<std::byte, Assembler::kHeaderBytes> header;
    Stream stream;
    std::shared_ptr<Message> message;
    std::size_t begin, bytes;
    bool last;
    std::size_t sent = 0;  // header included
  };
  static constexpr std::size_t kCutAhead = 512 << 10, kMostCut = 8;
  void cut_chunk();
  void wrote(std::size_t bytes);
  void release(Message& message);
  void own(Message& message);
  bool receive_some(const std::function<void(std::size_t, std::span<const std::byte>)>& took);

  Descriptor socket_;
  Assembler assembler_;
  std::map<Stream, Flow> flows_;
  std::deque<Stream> turns_;  // each stream of flows_ once
  std::deque<Chunk> cut_;
  std::size_t cut_bytes_ = 0;
  Bytes buffer_;
  std::uint64_t bytes_sent_ = 0, bytes_received_ = 0, releases_ = 0;
};

}  // namespace shoal::wire
