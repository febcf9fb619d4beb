#include "shoal/comm/hierarchical_engine.h"

#include "shoal/comm/host_engine.h"

namespace shoal::comm {

using collective::HierarchicalCommunicator;
using collective::HostCommunicator;

HierarchicalEngine::HierarchicalEngine(std::shared_ptr<HierarchicalCommunicator> communicator,
                                       std::shared_ptr<wire::Arena> arena,
                                       std::shared_ptr<void> keep)
    : CommunicatorEngine(std::move(communicator), keep),
      arena_(std::move(arena)),
      keep_(std::move(keep)) {}

int HierarchicalEngine::host() const {
  return static_cast<const HierarchicalCommunicator&>(*communicator()).layout().host;
}

std::shared_ptr<Engine> HierarchicalEngine::split(int color, int key) {
  std::shared_ptr<collective::Communicator> part = communicator()->split(color, key);
  return part ? engine_over(std::move(part), arena_, keep_) : nullptr;
}

std::shared_ptr<Engine> engine_over(std::shared_ptr<collective::Communicator> part,
                                    std::shared_ptr<wire::Arena> arena,
                                    std::shared_ptr<void> keep) {
  if (auto host = std::dynamic_pointer_cast<HostCommunicator>(part))
    return std::make_shared<HostEngine>(std::move(host), std::move(arena), false);
  if (auto mixed = std::dynamic_pointer_cast<HierarchicalCommunicator>(part)) {
    return std::make_shared<HierarchicalEngine>(std::move(mixed), std::move(arena),
                                                std::move(keep));
  }
  return std::make_shared<CommunicatorEngine>(std::move(part), std::move(keep));
}

}  // namespace shoal::comm
