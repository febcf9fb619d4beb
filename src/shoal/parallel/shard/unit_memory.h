#pragma once

#include <memory>

#include "shoal/comm/group.h"
#include "shoal/parallel/shard/flat_unit.h"

namespace shoal::parallel {

/// The parameters of one unit in memory: `full` (all shards in rank order, what modules compute with) and `own`, this rank's shard.
///
/// Resident: `own` is a part of `full`, which is always there. Released on demand: `own` has memory of its own and `full` only between `gather` and
/// `release`; tensors that autograd saved stay valid through a release, as long as the unit is gathered again before they are read.
class UnitMemory {
 public:
  /// `shared`: memory of `full` that all ranks of `group` see; undefined: each takes its own. `resident`: see above; always with `shared`.
  UnitMemory(FlatUnit unit, comm::Group group, const at::Tensor& shared, bool resident);

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
  /// `full` becomes current where every rank has its own copy: all-gather in place.
  void exchange();
  /// Memory for `full` without a gather; its contents are undefined.
  void take();
  /// Writes this rank's part of `full` to `own`.
  void keep_own();

 private:
  FlatUnit unit_;
  comm::Group group_;
  bool resident_, gathered_;
  at::Tensor full_, own_;
  comm::Work work_;
};

}  // namespace shoal::parallel
