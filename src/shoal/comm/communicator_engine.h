#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "shoal/collective/communicator.h"
#include "shoal/comm/engine.h"

namespace shoal::comm {

/// Any collective::Communicator. By itself for ranks that share no memory: TCP. `keep` lives as
/// long as the engine and its splits: what the communicator stands on.
class CommunicatorEngine : public Engine {
 public:
  CommunicatorEngine(std::shared_ptr<collective::Communicator> communicator,
                     std::shared_ptr<void> keep);

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  bool supports(collective::Kind kind, ElementType type,
                collective::Reduction reduction) const override {
    return communicator_->supports(kind, type, reduction);
  }
  Work start(const Call& call) override;
  void poll() override;
  std::shared_ptr<Engine> split(int color, int key) override;
  void abort(const Error& cause) override { communicator_->abort(cause); }

  const std::shared_ptr<collective::Communicator>& communicator() const { return communicator_; }

 private:
  struct InFlight {
    collective::Handle handle;
    std::vector<at::Tensor> tensors;
  };
  void release();

  std::shared_ptr<void> keep_;  ///< goes after the communicator
  std::shared_ptr<collective::Communicator> communicator_;
  std::deque<InFlight> in_flight_;  ///< tensors live until every rank has finished with them,
                                    ///< whether or not anybody keeps the Work
};

}  // namespace shoal::comm
