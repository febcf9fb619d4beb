#pragma once

#include <functional>
#include <vector>

#include "shoal/schedule/action.h"

namespace shoal::schedule {

/// What one micro-batch costs in one stage. Seconds, or any unit of time; memory in bytes, or any
/// unit.
struct StageCost {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  double activations = 1;   ///< held from the forward on
  double weight_store = 0;  ///< what of it is held from the input gradient until the weight
                            ///< gradient; at most `activations`

  double compute() const { return forward + input_gradient + weight_gradient; }
};

struct Costs {
  std::vector<StageCost> stages;  ///< one per stage, or one for all
  double transfer = 0;            ///< a message, from its send until it can be used
  double occupancy = 0;           ///< of that, the time that the sender is busy
  std::vector<double> slowdown;   ///< per rank, multiplies its computations; empty: none

  const StageCost& of(int stage) const {
    return stages.size() == 1 ? stages.front() : stages[stage];
  }
};

/// One action when it ran.
struct Span {
  Action action;
  double begin = 0;
  double end = 0;
};

/// A schedule carried out.
struct Timeline {
  std::vector<std::vector<Span>> ranks;  ///< computations and waits that took time, in order
  std::vector<double> busy;              ///< time in computations, per rank
  /// first and last moment of each rank
  std::vector<double> begin;
  std::vector<double> end;

  double makespan() const;      ///< from the start to the end of the last rank
  double longest_span() const;  ///< the longest time that one rank is engaged: the cost of a step
                                ///< when ranks start the next one on their own

  /// 1 - work / longest_span, as zero-bubble papers count: the share of the most loaded rank's time
  /// that is not the average rank's work.
  double bubble_fraction() const;
};

/// Is given what would stand in Timeline::ranks, one span after the other: those of a rank in
/// order, ranks mixed.
using Visit = std::function<void(int rank, const Span& span)>;

/// Runs the table: every rank in order, a receive waiting for its message. Throws Error(usage) when
/// ranks wait for each other, naming a rank and the action that it is stuck at; the table's stages,
/// micro-batches and peers must exist (`check` makes sure). Linear in the number of actions. With
/// `visit` no span is kept: Timeline::ranks holds nothing, whatever the number of actions.
Timeline simulate(const Schedule& schedule, const Costs& costs, const Visit& visit = {});

/// Throws Error(usage) naming rank and action unless every stage runs every micro-batch forward
/// once and backward once (whole or in two parts, in order) on its own rank, every message is sent
/// once and received once before its use, and no ranks wait for each other.
void check(const Schedule& schedule);

/// The most activation memory that each rank holds at once.
std::vector<double> activation_peak(const Schedule& schedule, const Costs& costs);

}  // namespace shoal::schedule
