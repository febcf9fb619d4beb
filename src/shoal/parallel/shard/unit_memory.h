#pragma once

#include <memory>

#include "shoal/comm/group.h"
#include "shoal/parallel/shard/flat_unit.h"
#include "shoal/parallel/shard/host_slots.h"

namespace shoal::parallel {

/// Holds the parameters of one flat unit in memory: `full` holds all shards in rank order, and
/// modules compute with it; `own` is this rank's shard.
///
/// When the unit is resident, `full` always has memory, and `own` is a part of it. Otherwise `own`
/// has memory of its own, and `full` has memory only between `gather` and `release`. Tensors that
/// autograd saved stay valid through a release, as long as the unit is gathered again before they
/// are read. When the unit is sent in another type, `own` always has memory of its own, and `full`
/// is rounded to that type on every rank, the rank's own part included.
class UnitMemory {
 public:
  struct Options {
    /// The memory of `full` in a resident unit that ranks share. Undefined: each rank takes its
    /// own.
    at::Tensor shared;
    /// Provides the slots of this host when its ranks share `full` but are not the whole group;
    /// else null.
    std::shared_ptr<HostSlots> slots;
    bool resident = true;
    at::ScalarType transfer_type = at::kFloat;  ///< float32 is sent as float32 or bf16
    std::uint32_t label = 0;  ///< number of the unit: a gather of different units is a mismatch
  };
  UnitMemory(FlatUnit unit, comm::Group group, Options options);
  UnitMemory(const UnitMemory&) = delete;
  UnitMemory& operator=(const UnitMemory&) = delete;

  const FlatUnit& unit() const { return unit_; }
  const at::Tensor& full() const { return full_; }
  const at::Tensor& own() const { return own_; }
  bool gathered() const { return gathered_; }

  /// Starts to fetch what other ranks own; does nothing when the unit is gathered.
  void gather();
  /// Waits for the gather or exchange that is in flight.
  void wait();
  /// Frees the memory of `full`. Waits for a gather that is in flight.
  void release();
  /// Starts to fetch the updates of other ranks into a resident unit that not all ranks share.
  void exchange() { fetch(); }
  /// Takes memory for `full` without a gather; its contents are undefined.
  void take();
  /// Copies this rank's part of `full` to `own`. With slots: waits until all ranks of the host have
  /// written their parts of `full`.
  void keep_own();

 private:
  bool rounds() const { return options_.transfer_type != unit_.type; }
  bool apart() const { return !options_.resident || rounds(); }
  std::size_t bytes() const {
    return static_cast<std::size_t>(unit_.size()) * c10::elementSize(unit_.type);
  }
  void fetch();
  void resize(std::size_t bytes);  ///< gives `full` so many bytes of memory, or none
  void widen();
  template <class Body>
  void with_unit_name(Body&& body) const;

  FlatUnit unit_;
  comm::Group group_;
  Options options_;
  bool gathered_;
  at::Tensor full_;
  at::Tensor own_;
  HostSlots::Slot slot_;  ///< memory of `full` while it is gathered into a slot
  comm::Work work_;
  // Shards of all ranks in the transfer type, while a gather is in flight, and their slot.
  at::Tensor transfer_;
  HostSlots::Slot transfer_slot_;
};

}  // namespace shoal::parallel
