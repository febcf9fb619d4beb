#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// Becomes true once the transport no longer reads memory that was handed over to be sent.
using Released = std::shared_ptr<std::atomic<bool>>;

/// Memory that a caller has posted for an incoming message. The thread that moves the bytes writes
/// to it until `arrived` is `bytes`, until `release_buffers`, or until the connections have failed.
struct PostedReceive {
  PostedReceive(std::byte* to, std::size_t size) : data(to), bytes(size) {}
  std::byte* const data;
  const std::size_t bytes;
  /// Bytes that have arrived, from the beginning on. Stored with release after the bytes are
  /// written: a thread that loads it with acquire may read that many.
  std::atomic<std::size_t> arrived{0};
  /// The size of the message where it is not `bytes`; the message is then taken by `take`.
  std::atomic<std::uint64_t> actual{0};
};

/// Carries messages between one rank and all others, on however many connections. Messages of one
/// sender and one stream arrive in the order sent, chunk by chunk; different streams have no order.
/// The first failure, here or on another rank, ends everything: every call of `check` throws it
/// from then on. Any thread may call any function.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Queues a message of `head` and `body`. `body` is not copied: it is read until `released`,
  /// which counts as an event. `flush` hands queued messages to the kernel. `stream.group` 0 is
  /// reserved for the transport itself. Returns false, and sends nothing, where `peer` has left or
  /// its connection is closed. Messages that were queued for such a peer before are never released.
  virtual bool send(int peer, Stream stream, int priority, Bytes head,
                    std::span<const std::byte> body, Released released) = 0;
  virtual void flush() = 0;
  /// Returns the next chunk of a stream, if it has arrived. A look that finds nothing says that
  /// this rank waits for the stream: messages for which nobody waits may be held back.
  virtual std::optional<ReceivedChunk> take(int peer, Stream stream) = 0;
  virtual bool has_arrived(int peer, Stream stream) = 0;
  /// Directs the rest of the stream's current message, or else the whole of its next one, to
  /// `receive`. A stream has one posted receive at a time.
  virtual void post_receive(int peer, Stream stream, std::shared_ptr<PostedReceive> receive) = 0;
  /// Ends all use of the caller's memory for `stream`, for sending and receiving, with every peer.
  virtual void release_buffers(Stream stream) = 0;
  /// Returns the number of connections to `peer`, which both of them know alike: more than one
  /// where they are far apart.
  virtual int rails(int) const { return 1; }
  /// Returns the shortest time from here to `peer` and back that was seen of late; zero where
  /// nobody measures it.
  virtual Duration round_trip(int) const { return {}; }
  /// Returns the bytes sent so far, headers and heartbeats included.
  virtual std::uint64_t bytes_sent(int peer) const = 0;
  /// Returns true once nothing more comes from `peer`: it has left, or its connection is closed.
  virtual bool gone(int peer) const = 0;
  /// Throws the first cause once there is one.
  virtual void check() const = 0;
  /// Fails on all ranks with `cause`, unless something has failed before.
  virtual void abort(const Error& cause) = 0;
  /// Counts arrivals, releases and failures. A caller reads it, looks for what it waits for, and
  /// passes the count that it read to `wait_for_event`: an event after the look is then not missed.
  virtual std::uint64_t events() const = 0;
  /// Moves bytes until `events()` differs from `seen`, for at most `limit`. Zero moves what there
  /// is to move.
  virtual void wait_for_event(std::uint64_t seen, Duration limit) = 0;
  /// Sets what this rank answers when a peer asks about `group`, at most 4 KiB; null removes it.
  /// Any thread calls `answer`, also while this rank is busy or waits; it must not call back.
  virtual void answer_for(std::uint64_t group, std::function<Bytes()> answer) = 0;
  /// Asks all other ranks about `group` and returns their answers by rank. A rank that is silent
  /// for `longest`, is gone or does not know the group has none.
  virtual std::vector<std::optional<Bytes>> ask(std::uint64_t group, Duration longest) = 0;
};

}  // namespace shoal::wire
