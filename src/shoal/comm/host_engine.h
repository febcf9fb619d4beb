#pragma once

#include <memory>

#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/comm/communicator_engine.h"
#include "shoal/wire/arena.h"

namespace shoal::comm {

/// The ranks of one host, processes or threads, over collective::HostCommunicator.
class HostEngine final : public CommunicatorEngine {
 public:
  /// `arena`: where shared buffers come from; null where ranks share none (shared_buffer then gives
  /// null).
  HostEngine(std::shared_ptr<collective::HostCommunicator> communicator,
             std::shared_ptr<wire::Arena> arena, bool threads);

  int host() const override { return 0; }
  std::shared_ptr<Engine> split(int color, int key) override;
  std::shared_ptr<SharedBuffer> shared_buffer(std::size_t bytes) override;
  bool visible_to_peers(const at::Tensor& tensor) const override;

 private:
  std::shared_ptr<collective::HostCommunicator> host_communicator() const {
    return std::static_pointer_cast<collective::HostCommunicator>(communicator());
  }

  std::shared_ptr<wire::Arena> arena_;
  bool threads_;
};

}  // namespace shoal::comm
