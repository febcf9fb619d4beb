#pragma once

#include <memory>

#include "shoal/comm/group.h"
#include "shoal/parallel/shard/flat_unit.h"
#include "shoal/parallel/shard/host_slots.h"

namespace shoal::parallel {

/// The parameters of one unit in memory: `full` (all shards in rank order, what modules compute
/// with) and `own`, this rank's shard.
///
/// Resident: `full` is always there, and `own` a part of it. Released on demand: `own` has memory
/// of its own and `full` only between `gather` and `release`; tensors that autograd saved stay
/// valid through a release, as long as the unit is gathered again before they are read. Where units
/// travel in another type `own` has memory of its own always, and what ranks compute with is
/// rounded to that type, their own part too.
class UnitMemory {
 public:
  struct Place {
    at::Tensor
        shared;  ///< resident: memory of `full` that ranks share; undefined: each takes its own
    std::shared_ptr<HostSlots> slots;  ///< of the ranks that share it, where they are not the whole
                                       ///< group; null: there are none
    bool resident = true;
    at::ScalarType travels =
        at::kFloat;           ///< type in which float32 goes to other ranks: itself or bf16
    std::uint32_t label = 0;  ///< of this unit: ranks find out when they gather different ones
  };
  UnitMemory(FlatUnit unit, comm::Group group, Place place);
  UnitMemory(const UnitMemory&) = delete;
  UnitMemory& operator=(const UnitMemory&) = delete;

  const FlatUnit& unit() const { return unit_; }
  const at::Tensor& full() const { return full_; }
  const at::Tensor& own() const { return own_; }
  bool gathered() const { return gathered_; }

  /// Starts to fetch what other ranks own; nothing when it is there.
  void gather();
  /// Waits for it.
  void wait();
  /// Gives the memory of `full` back. Waits for a gather that is under way.
  void release();
  /// Starts to make `full` of a resident unit current, where not all ranks share it; `wait` ends
  /// it.
  void exchange() { fetch(); }
  /// Memory for `full` without a gather; its contents are undefined.
  void take();
  /// Writes this rank's part of `full` to `own`. With slots: when all ranks of the host have
  /// written theirs.
  void keep_own();

 private:
  bool rounds() const { return place_.travels != unit_.type; }
  bool apart() const { return !place_.resident || rounds(); }
  std::size_t bytes() const {
    return static_cast<std::size_t>(unit_.size()) * c10::elementSize(unit_.type);
  }
  void fetch();
  void widen();
  template <class Body>
  void named(Body&& body) const;

  FlatUnit unit_;
  comm::Group group_;
  Place place_;
  bool gathered_;
  at::Tensor full_;
  at::Tensor own_;
  HostSlots::Slot slot_;  ///< of `full`, released on demand
  comm::Work work_;
  // On the way in another type: what all ranks send, and its slot.
  at::Tensor way_;
  HostSlots::Slot way_slot_;
};

}  // namespace shoal::parallel
