#pragma once

#include <memory>

#include "shoal/collective/hierarchy/hierarchical_communicator.h"
#include "shoal/comm/communicator_engine.h"
#include "shoal/wire/arena.h"

namespace shoal::comm {

/// Ranks on several hosts that share memory where they can. What splits off and lies on one host is
/// a HostEngine, with all that one can.
class HierarchicalEngine final : public CommunicatorEngine {
 public:
  HierarchicalEngine(std::shared_ptr<collective::HierarchicalCommunicator> communicator,
                     std::shared_ptr<wire::Arena> arena, std::shared_ptr<void> keep);

  int host() const override;
  std::shared_ptr<Engine> split(int color, int key) override;

 private:
  std::shared_ptr<wire::Arena> arena_;
  std::shared_ptr<void> keep_;
};

/// The engine over a group of processes as collective::Fabric makes them: with all that its
/// communicator can.
std::shared_ptr<Engine> engine_over(std::shared_ptr<collective::Communicator> group,
                                    std::shared_ptr<wire::Arena> arena, std::shared_ptr<void> keep);

}  // namespace shoal::comm
