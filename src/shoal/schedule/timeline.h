#pragma once

#include <functional>
#include <vector>

#include "shoal/schedule/action.h"

namespace shoal::schedule {

/// The costs of one micro-batch in one stage, in seconds and bytes or any other units.
struct StageCost {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  double activations = 1;  ///< memory held from the forward pass on
  /// The part of `activations` that is held from the input gradient until the weight gradient.
  double weight_store = 0;

  double compute() const { return forward + input_gradient + weight_gradient; }
};

struct Costs {
  std::vector<StageCost> stages;  ///< one per stage, or one for all
  double transfer = 0;            ///< time of a message from its send until its use
  double occupancy = 0;           ///< part of `transfer`: the sender is busy
  std::vector<double> slowdown;   ///< per rank: factor of its computations; empty: none
  /// The time of one computation, instead of those above: to compare a step that was run with what
  /// its own computations would take without waits that the table does not ask for.
  std::function<double(const Action&)> measured;

  const StageCost& of(int stage) const {
    return stages.size() == 1 ? stages.front() : stages[stage];
  }
};

/// The time at which one action ran.
struct Span {
  Action action;
  double begin = 0;
  double end = 0;
};

/// A simulated schedule.
struct Timeline {
  std::vector<std::vector<Span>> ranks;  ///< computations and waits that took time, in order
  std::vector<double> busy;              ///< time in computations, per rank
  // The first and the last moment of each rank.
  std::vector<double> begin;
  std::vector<double> end;

  /// Returns the time from the start to the end of the last rank.
  double makespan() const;
  /// Returns the longest time from the begin to the end of one rank: the cost of a step when each
  /// rank starts the next step on its own.
  double longest_span() const;

  /// Returns 1 - work / longest_span with the average work of a rank, as zero-bubble papers count.
  double bubble_fraction() const;
};

/// Receives the spans of Timeline::ranks one by one: those of a rank in order, ranks mixed.
using Visit = std::function<void(int rank, const Span& span)>;

/// Simulates the table: every rank runs in order, and a receive waits for its message. Throws
/// Error(usage) when ranks wait for each other, naming a rank and the action at which it is stuck.
/// The table's stages, micro-batches and peers must exist (`check` makes sure). The time is linear
/// in the number of actions. With `visit` no span is kept: Timeline::ranks stays empty, whatever
/// the number of actions.
Timeline simulate(const Schedule& schedule, const Costs& costs, const Visit& visit = {});

/// Throws Error(usage) naming rank and action unless every stage runs every micro-batch forward
/// once and backward once (whole or in two parts, in order) on its own rank, every message is sent
/// once and received once before its use, no ranks wait for each other, and where a rank gathers
/// stages it has each one that it uses, and releases it at last.
void check(const Schedule& schedule);

/// Returns the most activation memory that each rank holds at once.
std::vector<double> activation_peak(const Schedule& schedule, const Costs& costs);

}  // namespace shoal::schedule
