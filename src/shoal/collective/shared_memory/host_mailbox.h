#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "shoal/collective/operation.h"
#include "shoal/collective/shared_memory/memory_map.h"
#include "shoal/wire/parking.h"

namespace shoal::collective {

/// Messages between two ranks of a group on one node.
///
/// Every ordered pair of ranks has a channel in shared memory: a ring of kSlotsPerChannel slots.
/// A sender posts a message in the next slot, and the receiver takes the oldest one with its tag.
/// So messages of one sender and tag arrive in the order in which they were sent, and different
/// tags may overtake each other. There are three paths:
///   inline: at most kInlineBytes travel in the slot, and the sender is done at once;
///   direct: the sender's buffer lies in an arena, and the receiver copies from it;
///   staged: the receiver accepts the message, and the sender passes the data through two chunks of
///     shared memory in turn, for one message at a time.
///
/// Invariants:
///   1. The state of a slot says who may change it: the sender, when it is free or taken; the
///      receiver, when it is posted or accepted. (The sender passes the chunks of an accepted
///      message without changing the state.) Each side stores the state after everything else that
///      it writes, and the other loads it with acquire.
///   2. The sender writes chunk k only after the receiver has consumed chunk k - 2, which lay in
///      the same place.
/// Nothing here waits: `advance` does what is possible. Threads: one at a time, as in the
/// communicator.
class HostMailbox {
 public:
  using Ticket = std::uint64_t;  ///< counted from 1
  static constexpr std::size_t kSlotsPerChannel = 16;
  static constexpr std::size_t kInlineBytes = 1024;
  static constexpr std::size_t kChunkBytes = 256 << 10;

  /// `base`: bytes(ranks) of zeroed shared memory. `memory` and `lot` must outlive the mailbox.
  /// `names[r]` is what errors call rank r of the group; empty: r.
  HostMailbox(std::byte* base, int ranks, int rank, const MemoryMap& memory, wire::ParkingLot& lot,
              std::vector<int> names = {});
  static std::size_t bytes(int ranks);

  /// Starts a send, or a receive (`peer` -1: from any rank). The other side must name the same type
  /// and count.
  Ticket start(const Operation& operation);
  /// Does what is possible now. Throws Error(mismatch) when a message differs in type or count from
  /// the receive that asks for it.
  void advance();

  bool idle() const { return open_.empty(); }
  std::size_t in_flight() const { return open_.size(); }
  bool complete(Ticket ticket) const { return !open_.contains(ticket); }
  /// Returns the operation of a ticket that is not complete; null otherwise.
  const Operation* find(Ticket ticket) const;
  /// Returns the source of a completed receive from any rank. It can be taken once.
  int take_source(Ticket ticket);
  /// Returns a rank from which a message with that tag has arrived that no receive in flight asks
  /// for; -1: none.
  int find_message(std::uint32_t tag) const;
  /// Describes what is in flight, and what has arrived without a receive, for error messages.
  std::string report() const;

 private:
  struct MessageSlot;
  struct Channel;
  struct Send {
    Ticket ticket;
    Operation operation;
    MessageSlot* slot = nullptr;
  };
  struct Receive {
    Ticket ticket;
    Operation operation;
    MessageSlot* slot = nullptr;  ///< the matched message; null before
    int source = -1;
  };

  Channel& channel(int from, int to) const;
  std::byte* staging(int from, std::uint64_t chunk) const;
  bool advance(Send& send, std::vector<bool>& blocked);
  bool stream(Send& send);
  bool advance(Receive& receive);
  MessageSlot* find_oldest(int source, std::uint64_t posted, std::uint32_t tag) const;
  bool match(Receive& receive);
  void check_match(const Receive& receive, const MessageSlot& slot) const;
  int name_of(int rank) const { return names_.empty() ? rank : names_[rank]; }

  std::byte* base_;
  std::size_t ranks_;
  int rank_;
  const MemoryMap& memory_;
  wire::ParkingLot& lot_;
  std::vector<int> names_;
  Ticket last_ = 0;
  Ticket streaming_ = 0;                ///< the send that uses the chunks of this rank; 0: none
  std::vector<std::uint64_t> posted_;   ///< by destination: messages posted so far
  std::vector<std::uint64_t> arrived_;  ///< by source: messages that this pass looks at
  std::list<Send> outgoing_;
  std::list<Receive> incoming_;
  std::unordered_set<Ticket> open_;
  std::unordered_map<Ticket, int> sources_;
};

}  // namespace shoal::collective
