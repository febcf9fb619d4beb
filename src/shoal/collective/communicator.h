#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/operation.h"

namespace shoal::collective {

/// Names an operation in flight by its sequence number within its communicator, counted from 1. In
/// a HostCommunicator the handle of a message (send, receive) has the highest bit set. 0 names no
/// operation and is complete.
using Handle = std::uint64_t;

/// The parts that the ranks of a communicator have lent each other, one each, which peers read
/// where they lie. Nobody, the owner included, writes to a part before the loan has ended. Threads:
/// any.
class Loan {
 public:
  virtual ~Loan() = default;

  /// Returns what `rank` has lent: readable until this rank gives the loan back.
  virtual std::span<const std::byte> part(int rank) const = 0;
  /// Says that this rank reads no more of it. Idempotent.
  virtual void give_back() = 0;
  /// Returns true when no rank reads any more: each has given the loan back or has come to its end.
  /// The owner of a part keeps its memory until then. Does not wait.
  virtual bool ended() const = 0;
};

/// Memory that every rank of a communicator maps.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;

  /// Takes a block of `bytes` zero bytes, 64-aligned, that exists once for all ranks. It is freed
  /// when every rank has dropped it. Null on every rank when the ranks share no memory after all.
  /// Collective. Throws Error(resource).
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  /// Returns true when every rank can read these bytes where they lie.
  virtual bool visible(const void* data, std::size_t bytes) const = 0;

  /// Lends `bytes` bytes of this rank, of any number, to all others, and returns what all have
  /// lent. Null on every rank where one of them has memory that the others cannot find (null `data`
  /// says so), or where too many loans have not ended. Collective; `tag` as in Operation. Throws
  /// what Communicator::wait throws.
  virtual std::shared_ptr<Loan> lend(const void* data, std::size_t bytes, std::uint32_t tag) = 0;
};

/// A communicator is a set of ranks that act together. The interface separates the request (an
/// Operation) from its execution (over shared memory, over TCP, or by a simulation in tests).
///
/// Every rank starts the same operations in the same order. An operation is complete on a rank when
/// its outputs are valid there *and* every peer has finished touching its inputs. Progress is made
/// inside `start`, `test`, `poll` and `wait`. Threads: one thread at a time, except
/// `abort`, which any thread may call at any time.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool supports(Kind kind, ElementType type, Reduction reduction) const = 0;

  /// Returns true for operations that may have their buffers in the memory of a device
  /// (MemoryKind::kDevice). For all others callers copy to the host.
  virtual bool carries_device_memory(Kind kind, ElementType type, Reduction reduction) const {
    return false;
  }

  /// Begins an operation and does what is quick and possible without waiting. Throws Error(usage)
  /// for an operation that makes no sense (check_operation).
  virtual Handle start(const Operation& operation) = 0;

  /// Makes progress; returns true when `handle` is complete. Throws the first cause:
  /// Error(timeout), Error(peer_lost), Error(mismatch), or any Error that a rank passed to `abort`.
  virtual bool test(Handle handle) = 0;

  /// Returns true when `handle` is known to be complete, without making progress. Throws nothing.
  virtual bool complete(Handle handle) const = 0;

  /// Blocks until `handle` is complete or `deadline` has passed, which is an Error(timeout) on this
  /// rank and aborts the communicator.
  virtual void wait(Handle handle, Deadline deadline) = 0;
  /// Waits as long as the operation's own timeout allows. This default is for communicators that
  /// enforce that timeout in every wait.
  virtual void wait(Handle handle) { wait(handle, Deadline::never()); }

  /// Blocks until `handle` is complete or about `longest` has passed; returns whether it is
  /// complete. Running out of time is no error here.
  virtual bool wait_briefly(Handle handle, Duration longest) {
    const Deadline end = Deadline::in(longest);
    while (!test(handle)) {
      if (end.passed()) return false;
      poll(std::min<Duration>(end.left(), std::chrono::milliseconds(1)));
    }
    return true;
  }

  /// Returns the source of a completed receive from any rank, once. Returns -1 when it was taken
  /// already, when the receive had named its source, or when the communicator does not know it.
  virtual int take_source(Handle handle) { return -1; }

  /// Makes progress on everything in flight for about `budget`.
  virtual void poll(Duration budget) = 0;

  /// Makes progress in the other communicators of this rank (see Progress), without waiting. Their
  /// own waits do so; whoever waits for something else, as for a device, calls it now and then,
  /// because peers may need those operations before they come to what is waited for. The default is
  /// for communicators that go on by themselves.
  virtual void advance_others() {}

  /// Throws what has ended the group, if anything has, as `test` does, whether or not an operation
  /// is in flight. Does not wait. By default nothing: for communicators that hear of failures in
  /// operations alone.
  virtual void look_for_failure() {}

  /// Returns true when nothing is in flight.
  virtual bool idle() const = 0;
  /// Returns true when another collective can be started without waiting for other ranks.
  virtual bool has_room() const { return true; }
  /// Returns the number of collectives started so far, which is equal on all ranks that have made
  /// the same calls.
  virtual std::uint64_t sequence() const = 0;
  /// Describes how far each rank has come: "rank 3 never entered #412 (its last was #411 ...)".
  /// May ask the other ranks, and waits at most a second for their answers.
  virtual std::string report() const = 0;

  /// Returns the communicator of the ranks that passed the same `color`, ordered by `key` and then
  /// by rank here; null for a negative color. Collective.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Ends everything in flight on all ranks with `cause`. Idempotent: the first cause wins.
  virtual void abort(const Error& cause) = 0;

  /// Returns the number of this rank's node: ranks with the same number share memory. By default no
  /// two ranks share memory.
  virtual int node() const { return rank(); }

  /// Returns the memory that all ranks of the communicator share; null where they share none. The
  /// object lives as long as the communicator; the blocks that it allocates may outlive both.
  virtual SharedMemory* shared_memory() { return nullptr; }

  /// Starts an operation and waits for it.
  void run(const Operation& operation, Deadline deadline) { wait(start(operation), deadline); }
};

}  // namespace shoal::collective
