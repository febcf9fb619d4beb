#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "shoal/collective/shared_memory/announcements.h"
#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/host_world.h"

namespace shoal::collective {

/// The shared memory of a group whose ranks are all played by one thread, so that a test decides
/// which of them acts next.
struct OneBlock {
  explicit OneBlock(int size)
      : control(std::make_shared<wire::SharedSegment>(
            wire::SharedSegment::create("control", HostWorld::control_bytes()))) {
    for (int r = 0; r < size; ++r) worlds.push_back(std::make_unique<HostWorld>(r, size, control));
    for (int r = 0; r < size; ++r) ranks.emplace_back(*worlds[r], block(), r, size);
    pending.resize(static_cast<std::size_t>(size));
  }
  int size() const { return static_cast<int>(worlds.size()); }
  HostBlock block() const {
    return HostBlock(worlds[0]->at(HostWorld::first_block(), HostBlock::bytes(size())), size());
  }
  /// Memory for calls that are announced and never executed.
  static std::byte* memory() {
    static std::vector<std::byte> bytes(64 << 10);
    return bytes.data();
  }
  PendingOperation make(int rank, const Operation& operation) const {
    PendingOperation p;
    p.reset(operation, rank, size(), std::chrono::seconds(1));
    return p;
  }
  /// Announces an operation of `rank`; sequences count from 1.
  PendingOperation& publish(int rank, std::uint64_t sequence, const Operation& operation) {
    auto& all = pending[static_cast<std::size_t>(rank)];
    all.resize(sequence);
    all[sequence - 1] = std::make_unique<PendingOperation>(make(rank, operation));
    ranks[static_cast<std::size_t>(rank)].publish(sequence, *all[sequence - 1]);
    return *all[sequence - 1];
  }
  PendingOperation& own(int rank, std::uint64_t sequence) {
    return *pending[static_cast<std::size_t>(rank)][sequence - 1];
  }

  std::shared_ptr<wire::SharedSegment> control;
  std::vector<std::unique_ptr<HostWorld>> worlds;
  std::vector<Announcements> ranks;
  std::vector<std::vector<std::unique_ptr<PendingOperation>>> pending;
};

}  // namespace shoal::collective
