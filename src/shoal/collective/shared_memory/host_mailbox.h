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

/// Messages between two ranks of a group on one host.
///
/// Every ordered pair of ranks has a ring of kLetters letters in shared memory. A sender posts a
/// letter, the receiver looks for the oldest one with its tag, so messages of one sender and tag
/// arrive in the order in which they were sent and different tags may overtake each other. Three
/// ways:
///   small: at most kLetterBytes travel inside the letter, and the sender is done at once;
///   direct: the sender's buffer lies in an arena, and the receiver copies from it;
///   staged: the receiver accepts the letter, and the sender passes the data through its two halves
///   of shared memory, one letter at a time.
/// Nothing here waits: `advance` does what can be done. Threads: one at a time, as its
/// communicator.
class HostMailbox {
 public:
  using Ticket = std::uint64_t;  ///< counted from 1
  static constexpr std::size_t kLetters = 16;
  static constexpr std::size_t kLetterBytes = 1024;
  static constexpr std::size_t kHalfBytes = 256 << 10;

  /// `base`: bytes(ranks) of zeroed shared memory. `memory` and `lot` must outlive the mailbox.
  HostMailbox(std::byte* base, int ranks, int rank, const MemoryMap& memory, wire::ParkingLot& lot);
  static std::size_t bytes(int ranks);

  /// Begins a send, or a receive (`peer` -1: from any rank). The other side must name the same type
  /// and count.
  Ticket start(const Operation& operation);
  /// Does what is possible now. Throws Error(mismatch) when a letter does not fit the receive that
  /// asks for it.
  void advance();

  bool idle() const { return open_.empty(); }
  std::size_t in_flight() const { return open_.size(); }
  bool complete(Ticket ticket) const { return !open_.contains(ticket); }
  /// The operation behind a ticket that is not complete; null otherwise.
  const Operation* find(Ticket ticket) const;
  /// Where a completed receive from any rank came from; to be asked once.
  int take_source(Ticket ticket);
  /// A rank from which a message with that tag has arrived that no receive under way asks for; -1:
  /// none.
  int find_message(std::uint32_t tag) const;
  /// What is in flight and what has arrived unasked, for people.
  std::string report() const;

 private:
  struct Letter;
  struct Pair;
  struct Sending {
    Ticket ticket;
    Operation operation;
    Letter* letter = nullptr;
  };
  struct Receiving {
    Ticket ticket;
    Operation operation;
    Letter* letter = nullptr;  ///< accepted, and being staged
    int source = -1;
  };

  Pair& pair(int from, int to) const;
  std::byte* half(int from, std::uint64_t chunk) const;
  bool advance(Sending& sending, std::vector<bool>& blocked);
  bool stream(Sending& sending);
  bool advance(Receiving& receiving);
  Letter* oldest(int source, std::uint64_t posted, std::uint32_t tag) const;
  bool claim(Receiving& receiving);
  void check_fit(const Receiving& receiving, const Letter& letter) const;

  std::byte* base_;
  std::size_t ranks_;
  int rank_;
  const MemoryMap& memory_;
  wire::ParkingLot& lot_;
  Ticket last_ = 0, streaming_ = 0;
  std::vector<std::uint64_t> posted_;   ///< by destination: letters posted so far
  std::vector<std::uint64_t> arrived_;  ///< by source: letters that this pass looks at
  std::list<Sending> outgoing_;
  std::list<Receiving> incoming_;
  std::unordered_set<Ticket> open_;
  std::unordered_map<Ticket, int> sources_;
};

}  // namespace shoal::collective
