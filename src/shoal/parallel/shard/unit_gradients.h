#pragma once

#include <memory>
#include <vector>

#include "shoal/comm/group.h"
#include "shoal/parallel/shard/flat_unit.h"

namespace shoal::parallel {

/// Reduces the gradients of flat units to their owners. The gradients of a unit are written into
/// one flat buffer, which is reduce-scattered over `shard`; the result is all-reduced over
/// `replicate`. Each rank then has the sums for its own shard.
///
/// Every rank sends every unit in every backward pass, in one order, used or not. Therefore a rank
/// that is ahead may wait in the middle of its backward pass for the others to read its buffers:
/// they do so when they reach the same unit, at the latest when they complete their own pass, and
/// before they wait for anything else.
class UnitGradients {
 public:
  struct Options {
    /// Keeps flat buffers for the next step; else each is freed as soon as it is reduced.
    bool keep_whole = false;
    /// Writes the sum over this rank's part of the buffer; needs keep_whole.
    bool in_place = false;
    /// After starting a reduction, backward waits until at most this many are incomplete; 0: it
    /// does not wait. Ignored with keep_whole.
    int in_flight = 0;
  };
  /// `units` must outlive this object; frozen ones among them are ignored. They are sent in reverse
  /// order on every rank. `all` are the ranks that hold the same units: shards and replicas.
  UnitGradients(std::vector<const FlatUnit*> units, const comm::Group& all, comm::Group shard,
                comm::Group replicate, Options options);
  ~UnitGradients();
  UnitGradients(const UnitGradients&) = delete;
  UnitGradients& operator=(const UnitGradients&) = delete;

  /// Forgets the sums of the step before.
  void clear();
  /// With `true`, a unit is sent from now on as soon as all its gradients are complete.
  void set_sending(bool sending);
  /// Ends a backward pass whose gradients are sent: returns when they have been added to the sums.
  /// Collective over all that hold the units.
  void complete();
  /// Returns this rank's part of the summed gradient of a parameter, flat; undefined when no rank
  /// has a gradient of it.
  at::Tensor sum(const nn::Parameter& parameter) const;

 private:
  struct Flight {
    std::size_t unit;
    at::Tensor sum;
    comm::Work work;
    bool on_replicas = false;
  };
  struct State {
    at::Tensor flat;
    at::Tensor sum;
    std::size_t arrived = 0;
  };
  struct Place {
    std::size_t unit;
    std::size_t member;
    bool arrived = false;
    bool used = false;
  };

  void make_flat(std::size_t unit);
  void wait_for_room();
  void ready(std::size_t parameter);
  void send(std::size_t unit);
  void start_replica_sums(bool wait);
  void collect_sums(bool wait);
  std::vector<bool> used_here() const;
  std::vector<bool> agree_on_used(const std::vector<bool>& here) const;
  const FlatUnit::Member& member(const Place& place) const {
    return units_[place.unit]->members[place.member];
  }

  std::vector<const FlatUnit*> units_;
  comm::Group control_;
  comm::Group shard_;
  comm::Group replicate_;
  Options options_;
  std::vector<State> states_;
  std::vector<Place> places_;       ///< places of trained parameters, unit by unit
  std::vector<std::size_t> first_;  ///< by unit: its first place
  std::vector<std::size_t> order_;  ///< units as they leave
  std::size_t sent_ = 0;
  std::vector<Flight> flights_;
  bool sending_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>();  ///< listeners outlive this
};

}  // namespace shoal::parallel
