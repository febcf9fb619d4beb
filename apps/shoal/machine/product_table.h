#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "apps/shoal/torch/entry.h"
#include "shoal/plan/cluster.h"

namespace shoal::apps {

/// Measured matmuls beside what a plain loop reaches and what the planner counts.
struct ProductTable {
  std::string title;          ///< whose products they are
  ProductArguments measured;  ///< all three passes, with the peaks
  plan::Cluster planned;
  std::string planned_by;  ///< what to call it
  /// A plan of these types goes by the kernels of the cluster (forecast::planned_by_kernels), and
  /// of the others by the figures of the device.
  std::set<ElementType> by_kernels;
  double others_cores = 0;  ///< that other processes kept busy meanwhile
};

/// Returns a table for each type: GFLOP/s of each shape and pass on a rank, the share of the peak
/// that the three reach together, and what the planner counts, "-" where that is no figure of the
/// product alone; below it the sums over all products.
std::string products_text(const ProductTable& table);
/// Returns one JSON object of one line.
std::string products_json(const ProductTable& table);

/// Returns the first measured pass of each shape, as forecast::set_products takes them.
std::map<ElementType, std::vector<forecast::TimedWork>> timed_products(
    const ProductArguments& measured);

}  // namespace shoal::apps
