#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// True once memory that was handed over to be sent is no longer read.
using Released = std::shared_ptr<std::atomic<bool>>;

/// Memory in which a message is to arrive: it is written by whoever moves the bytes until `arrived`
/// is `bytes`, the landing is called off, or the connections have failed.
struct Landing {
  Landing(std::byte* to, std::size_t size) : data(to), bytes(size) {}
  std::byte* const data;
  const std::size_t bytes;
  std::atomic<std::size_t> arrived{0};  ///< from the beginning on
  std::atomic<std::uint64_t> actual{
      0};  ///< the size of the message, where it is another: then it is to be had by `take`
};

/// What carries messages between one rank and all others, on however many connections: of one
/// sender those of a stream arrive in the order sent, in pieces, those of different streams in any
/// order. The first failure, here or on another rank, ends everything: every call of `check` throws
/// it from then on. All functions may be called by any thread.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Queues a message of `head` and of `body`, which is read where it lies until `released`;
  /// `flush` hands it on. A release is an event. `stream.group` 0 is taken.
  virtual void send(int peer, Stream stream, int priority, Bytes head,
                    std::span<const std::byte> body, Released released) = 0;
  virtual void flush() = 0;
  /// The next piece of a stream, if it has arrived.
  virtual std::optional<Piece> take(int peer, Stream stream) = 0;
  virtual bool has_arrived(int peer, Stream stream) const = 0;
  /// What is still to be taken of the stream's current message, or else the whole of its next, goes
  /// to `landing`. One a stream at a time.
  virtual void land(int peer, Stream stream, std::shared_ptr<Landing> landing) = 0;
  /// Memory of the caller's is neither read nor written any more for `stream`, of whatever peer.
  virtual void let_go(Stream stream) = 0;
  /// Headers and heartbeats included, so far.
  virtual std::uint64_t bytes_sent(int peer) const = 0;
  /// `peer` has said goodbye and closed its end.
  virtual bool gone(int peer) const = 0;
  /// Throws the first cause once there is one.
  virtual void check() const = 0;
  /// Fails on all ranks with `cause`, unless something has failed before.
  virtual void abort(const Error& cause) = 0;
  /// Counts what happens: arrivals, releases, failures. To be read before looking for something,
  /// and given to `wait_for_event` when it was not there.
  virtual std::uint64_t events() const = 0;
  /// Moves bytes until something happens. Zero: moves what there is to move.
  virtual void wait_for_event(std::uint64_t seen, Duration limit) = 0;
  /// What this rank says when a peer asks about `group`, at most 4 KiB; null: nothing any more.
  /// `say` is called by any thread, also while this rank is busy or waits, and must not call back.
  virtual void answer_for(std::uint64_t group, std::function<Bytes()> say) = 0;
  /// Asks all other ranks about `group`; by rank what each says within `patience`, nothing of those
  /// that are silent, gone or know no such group.
  virtual std::vector<std::optional<Bytes>> ask(std::uint64_t group, Duration patience) = 0;
};

}  // namespace shoal::wire
