#pragma once

#include <map>
#include <string>
#include <vector>

#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// The factors by which work takes longer now than when a cluster was measured. The speed of a
/// processor that is shared with other machines' work changes by the minute, and the bandwidth of
/// its memory changes apart from its clock. Matmuls do not notice the latter: they read weights at
/// the pace of their own arithmetic, which does not use the whole bandwidth.
struct Drift {
  double core = 1;    ///< every other kernel
  double memory = 1;  ///< kernels that do little but read and write memory: streams_memory
};

/// Returns the drift that explains `now`, kernels by name that were measured again, with the least
/// squares of relative errors. If only one kind was measured, the other is taken to drift alike.
/// Throws Error(usage) where `now` is empty, names a kernel that the cluster does not have, or
/// holds times that are not positive.
Drift drift(const Cluster& cluster, const std::map<std::string, std::vector<TimedKernel>>& now);

/// Returns the cluster with its kernels as they are after `drift`; the rest of it stays.
Cluster drifted(Cluster cluster, const Drift& drift);

}  // namespace shoal::forecast
