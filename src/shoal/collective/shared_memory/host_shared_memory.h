#pragma once

#include <memory>

#include "shoal/collective/communicator.h"
#include "shoal/collective/shared_memory/host_loans.h"
#include "shoal/collective/shared_memory/host_world.h"
#include "shoal/wire/arena.h"

namespace shoal::collective {

/// The memory that the ranks of a HostCommunicator share. The first rank takes each block from its
/// arena (threads without an arena: from the C library) and the others reach it there. Processes
/// whose first rank has no arena share none.
class HostSharedMemory final : public SharedMemory {
 public:
  HostSharedMemory(Communicator& communicator, std::shared_ptr<HostWorld> world,
                   std::shared_ptr<wire::Arena> arena, HostLoans loans)
      : communicator_(communicator),
        world_(std::move(world)),
        arena_(std::move(arena)),
        loans_(std::move(loans)) {}

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  bool visible(const void* data, std::size_t bytes) const override;
  std::shared_ptr<Loan> lend(const void* data, std::size_t bytes, std::uint32_t tag) override {
    return loans_.lend(communicator_, data, bytes, tag);
  }

 private:
  Communicator& communicator_;
  std::shared_ptr<HostWorld> world_;
  std::shared_ptr<wire::Arena> arena_;
  HostLoans loans_;
};

}  // namespace shoal::collective
