#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "shoal/collective/host_communicator.h"
#include "shoal/comm/engine.h"
#include "shoal/wire/arena.h"

namespace shoal::comm {

/// The ranks of one host, processes or threads, over collective::HostCommunicator.
class HostEngine final : public Engine, public std::enable_shared_from_this<HostEngine> {
 public:
  /// `arena`: where shared buffers come from; null where ranks share none (shared_buffer then gives null).
  HostEngine(std::shared_ptr<collective::HostCommunicator> communicator, std::shared_ptr<wire::Arena> arena, bool threads);

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  bool supports(collective::Kind kind, ElementType type, collective::Reduction reduction) const override {
    return communicator_->supports(kind, type, reduction);
  }
  Work start(const Call& call) override;
  void poll() override;
  std::shared_ptr<Engine> split(int color, int key) override;
  void abort(const Error& cause) override { communicator_->abort(cause); }
  std::shared_ptr<SharedBuffer> shared_buffer(std::size_t bytes) override;
  bool visible_to_peers(const at::Tensor& tensor) const override;

  collective::HostCommunicator& communicator() { return *communicator_; }

 private:
  struct InFlight {
    collective::Handle handle;
    std::vector<at::Tensor> tensors;
  };
  void release();

  std::shared_ptr<collective::HostCommunicator> communicator_;
  std::shared_ptr<wire::Arena> arena_;
  bool threads_;
  std::deque<InFlight> in_flight_;  ///< tensors live until every rank has finished with them, whether or not anybody keeps the Work
};

}  // namespace shoal::comm
