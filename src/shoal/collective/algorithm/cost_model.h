#pragma once

#include <cstddef>
#include <span>

#include "shoal/collective/algorithm/step.h"
#include "shoal/collective/route/link_matrix.h"

namespace shoal::collective {

/// The cost of a message on one kind of link: `alpha` seconds whatever its size, `beta` seconds a
/// byte (Hockney, 1994).
struct LinkCost {
  double alpha = 0;
  double beta = 0;

  bool operator==(const LinkCost&) const = default;
};

/// The costs of a machine, as far as a table depends on them. The defaults are measured on loopback
/// and taken from 10-gigabit Ethernet; measure and replace them.
struct CostModel {
  LinkCost inside{15e-6, 1 / 2.0e9};    ///< between two ranks of one host
  LinkCost between{30e-6, 1 / 1.15e9};  ///< between hosts; the ranks of a host share its link
  double overhead = 3e-6;   ///< seconds that a rank is busy with a message, whatever its size
  double fold = 1 / 8.0e9;  ///< seconds to reduce a byte into a result

  bool operator==(const CostModel&) const = default;
};

/// Predicts the seconds until the last rank has executed `table`, by simulating it. A rank sends
/// and receives one message at a time in each direction, and so does a host towards the others; a
/// receive waits for the arrival. `hosts[r]` names the host of rank r; empty: all are on one.
/// `links`: what was measured between the ranks, in the place of the model's links; null: nothing.
/// Throws Error(internal) for a table that cannot finish.
double predict_seconds(const StepTable& table, std::size_t element_bytes, const CostModel& model,
                       std::span<const int> hosts = {}, const LinkMatrix* links = nullptr);

/// As predict_seconds, for tables in which all ranks do the same at the same time, each with the
/// peers at the same distances from it: `column` is that of rank 0 of `ranks`, and stands for all.
/// Its time and memory grow with the steps of one rank, not of all. `hosts`: as above; where hosts
/// have several ranks, those of one are taken to use its link all at a time. Throws Error(internal)
/// for a column that cannot finish.
double predict_seconds_of_equals(std::span<const Step> column, int ranks, std::size_t element_bytes,
                                 const CostModel& model, std::span<const int> hosts = {});

}  // namespace shoal::collective
