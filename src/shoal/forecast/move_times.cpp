#include "shoal/forecast/move_times.h"

#include "shoal/forecast/unit_times.h"

namespace shoal::forecast {

using enum model::Boundary;

// Ranks divide whole samples where those are enough, or the columns of a single one: the parts then
// lie one behind the other.
MoveTimes::MoveTimes(const Training& training, const Cluster& cluster, double rows)
    : cluster_(cluster),
      rows_(rows),
      ranks_(static_cast<double>(training.degrees.tp)),
      in_order_(training.micro_batch == 1 || training.micro_batch % training.degrees.tp == 0) {}

double MoveTimes::pass(double elements) const {
  return kernel_seconds(cluster_, "norm", plan::pass_work(elements));
}

/// Returns the time of a gather or a scattered sum; where parts do not lie in order, a pass over
/// all rows puts them together or takes them apart.
double MoveTimes::with_order(const char* kernel, model::Boundary cut, double elements) const {
  const bool in_order = cut == kStream && in_order_;
  return kernel_seconds(cluster_, kernel, plan::memory_work(elements)) +
         (in_order ? 0 : pass(elements));
}

// Kernels are those of ranks that share memory, and such ranks pack nothing.
double MoveTimes::exchange(double elements) const {
  return kernel_seconds(cluster_, "gather", plan::memory_work(elements / ranks_));
}

double MoveTimes::forward(model::Boundary from, model::Boundary to, double features) const {
  if (ranks_ == 1 || from == to) return 0;
  const double elements = rows_ * features;
  if (from == kReplicate) return pass(elements / ranks_);
  if (from == kPartial) {
    return to == kReplicate
               ? with_order("scatter", kStream, elements) + with_order("gather", kStream, elements)
               : with_order("scatter", to, elements);
  }
  return to == kReplicate ? with_order("gather", from, elements) : exchange(elements);
}

double MoveTimes::backward(model::Boundary from, model::Boundary to, double features) const {
  if (ranks_ == 1 || from == to) return 0;
  const double elements = rows_ * features;
  // The gradient of a part that was cut out has zeros around it.
  if (from == kReplicate) return pass(elements);
  if (from == kPartial)
    return to == kReplicate ? forward(from, to, features) : with_order("gather", to, elements);
  return to == kReplicate ? with_order("scatter", from, elements) : exchange(elements);
}

}  // namespace shoal::forecast
