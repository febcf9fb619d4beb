#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/collective/communicator.h"
#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/host_world.h"

namespace shoal::collective {

/// One rank's view of the table of loans of a group: what its ranks have lent each other
/// (SharedMemory::lend), each loan in one of kLoans slots.
///
/// The ranks lend by one exchange, in which each says where its part lies and which slots it sees
/// free. All decide from the same words, so all lend or none does, and all take the same slot.
/// Invariants:
///   1. `lent_` is the same on all ranks: how often each slot was taken.
///   2. A rank stores LoanLine::given_back of a slot after its last read of what was lent there. An
///      owner that loads it with acquire may write and free its part.
///   3. A slot is free when every rank has given back as often as it was taken. What one rank sees
///      free stays free until all take the slot together.
/// Threads: only the thread of the rank may lend; loans are used by any.
class HostLoans {
 public:
  /// `members`: the group's ranks in the world.
  HostLoans(std::shared_ptr<HostWorld> world, HostBlock block, std::vector<int> members, int rank)
      : world_(std::move(world)), block_(block), members_(std::move(members)), rank_(rank) {}

  /// See SharedMemory::lend; the exchange is an operation of `communicator`.
  std::shared_ptr<Loan> lend(Communicator& communicator, const void* data, std::size_t bytes,
                             std::uint32_t tag);

 private:
  std::uint64_t free_slots() const;

  std::shared_ptr<HostWorld> world_;
  HostBlock block_;
  std::vector<int> members_;
  int rank_;
  std::array<std::uint64_t, kLoans> lent_{};
};

}  // namespace shoal::collective
