#include "shoal/comm/hierarchical_engine.h"

#include "shoal/comm/host_engine.h"

namespace shoal::comm {

using collective::HierarchicalCommunicator;
using collective::HostCommunicator;

HierarchicalEngine::HierarchicalEngine(std::shared_ptr<HierarchicalCommunicator> communicator, std::shared_ptr<wire::Arena> arena,
                                       std::shared_ptr<void> keep)
    : CommunicatorEngine(std::move(communicator), keep), arena_(std::move(arena)), keep_(std::move(keep)) {}

int HierarchicalEngine::host() const { return static_cast<const HierarchicalCommunicator&>(*communicator()).layout().host; }

std::shared_ptr<Engine> HierarchicalEngine::split(int color, int key) {
  const std::shared_ptr<collective::Communicator> part = communicator()->split(color, key);
  if (!part) return nullptr;
  if (auto host = std::dynamic_pointer_cast<HostCommunicator>(part)) return std::make_shared<HostEngine>(std::move(host), arena_, false);
  if (auto mixed = std::dynamic_pointer_cast<HierarchicalCommunicator>(part))
    return std::make_shared<HierarchicalEngine>(std::move(mixed), arena_, keep_);
  return std::make_shared<CommunicatorEngine>(part, keep_);
}

}  // namespace shoal::comm
