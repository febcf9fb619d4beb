#pragma once

#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// Returns the states of a job: its own, or those of its precision.
StateBytes states_of(const Training& training);

/// Counts parameters that tensor or expert parallelism has divided already, as ZeRO divides them
/// further. Each kind is cut over the ranks that hold the same ones (parallel/ownership.h): what is
/// split along tp over data and context ranks, vectors and routers over the tensor ranks too, and
/// divided experts over all ranks with the same experts, those of other copies included.
class StateShares {
 public:
  StateShares(const Training& training, const Cluster& cluster);

  /// Returns how many parameters a rank owns: its shard of each, or all without ZeRO.
  double owned(const plan::HeldParameters& held) const;
  /// Returns what counts on a rank of parameters that lie whole: an equal part of what the ranks of
  /// its host hold once, whichever of them allocated it. Without ZeRO, or where ranks share no
  /// memory, that is all of them.
  double read(const plan::HeldParameters& held) const;
  /// Returns how many parameters a rank writes to a checkpoint: copies are written once.
  double saved(const plan::HeldParameters& held) const;
  /// True where the ranks that shard dense parameters read one copy, so that nothing is gathered.
  bool shared() const { return shared_; }
  /// True where dense gradients are cut: more than one rank has shards.
  bool cut() const { return cut_.split > 1; }

 private:
  plan::HeldParameters cut_{1, 1, 1};      ///< ranks that own shards, of each kind
  plan::HeldParameters readers_{1, 1, 1};  ///< ranks that read one copy
  plan::HeldParameters copies_{1, 1, 1};   ///< ranks that hold the same
  bool shared_ = false;
};

/// The model states that one rank holds: its parameters, their gradients and the optimizer's state.
class RankStates {
 public:
  RankStates(const Training& training, const Cluster& cluster, const plan::HeldParameters& held);

  const StateShares& shares() const { return shares_; }
  const StateBytes& bytes() const { return bytes_; }
  /// Returns true if a unit's gradient is whole only from its first use in a backward pass until it
  /// is reduced. After that the rank holds its shard.
  bool gradients_leave() const { return training_.zero_stage >= 2 && shares_.cut(); }
  /// Return the bytes of all gradients, whole and after they were reduced.
  double whole_gradients() const { return held_.all() * bytes_.gradient; }
  double last_gradients() const {
    return gradients_leave() ? shares_.owned(held_) * bytes_.gradient : whole_gradients();
  }
  /// Returns the states at a moment that holds so many bytes of gradients.
  MemoryUse with_gradients(double bytes) const;
  /// Returns the states when the optimizer updates, and members exchange what they have become.
  MemoryUse at_update() const;

 private:
  /// Returns the bytes of an exchange between members that is under way.
  double in_flight() const;

  const Training& training_;
  StateBytes bytes_;
  StateShares shares_;
  plan::HeldParameters held_;
};

}  // namespace shoal::forecast
