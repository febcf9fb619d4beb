#pragma once

#include <memory>

#include "shoal/collective/communicator.h"
#include "shoal/collective/shared_memory/host_world.h"
#include "shoal/wire/arena.h"

namespace shoal::collective {

/// The memory that the ranks of a HostCommunicator share. The first rank takes each block from its
/// arena (threads without an arena: from the C library) and the others reach it there. Processes
/// whose first rank has no arena share none.
class HostSharedMemory final : public SharedMemory {
 public:
  HostSharedMemory(Communicator& communicator, std::shared_ptr<HostWorld> world,
                   std::shared_ptr<wire::Arena> arena)
      : communicator_(communicator), world_(std::move(world)), arena_(std::move(arena)) {}

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  bool visible(const void* data, std::size_t bytes) const override;

 private:
  Communicator& communicator_;
  std::shared_ptr<HostWorld> world_;
  std::shared_ptr<wire::Arena> arena_;
};

}  // namespace shoal::collective
