#pragma once

#include "shoal/forecast/plan_names.h"
#include "shoal/model/tensor_division.h"

namespace shoal::forecast {

/// The times of the moves of activations between tensor-parallel ranks, one micro-batch each.
///
/// Gathers and scattered sums are measured kernels. From them and from passes over memory follow
/// the moves of a recipe for which there is none: a sum that all ranks get is a scattered one and a
/// gather, an exchange of one cut for another copies a n-th of a gather, and what a rank cuts out
/// or pads is a pass.
class MoveTimes {
 public:
  /// `rows`: of the micro-batch.
  MoveTimes(const Training& training, const Cluster& cluster, double rows);

  /// Return the seconds of a move of so many features of every row, and of its gradient's.
  double forward(model::Boundary from, model::Boundary to, double features) const;
  double backward(model::Boundary from, model::Boundary to, double features) const;

 private:
  double with_order(const char* kernel, model::Boundary cut, double elements) const;
  double pass(double elements) const;
  double exchange(double elements) const;

  const Cluster& cluster_;
  double rows_;
  double ranks_;
  bool in_order_;  ///< the parts of the stream lie one behind the other in memory
};

}  // namespace shoal::forecast
