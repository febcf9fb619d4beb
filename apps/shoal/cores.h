#pragma once

#include <vector>

namespace shoal::apps {

/// What this process may compute on.
struct Cores {
  std::vector<int> list;  ///< logical cores of the affinity mask, in order
  double quota = 0;       ///< cores' worth of time that the control group grants; 0: no limit

  /// How many threads can run at once: cores, or the quota rounded up if that is less; at least 1.
  int usable() const;
};

Cores cores_of_this_process();

/// What rank `local_rank` of `local_world` that another launcher started may compute on, of which
/// `mine` is its own and `launcher` the launcher's mask. A launcher that binds leaves each rank a
/// part; then ranks do not share all of it.
struct BoundCores {
  Cores cores;      ///< with the quota's part that falls to those who share them
  int sharers = 1;  ///< ranks that compute on them, as far as the masks tell
};
BoundCores bound_cores(const Cores& mine, const Cores& launcher, int local_world);

/// The affinity mask of the process that started this one; empty where it cannot be read.
Cores cores_of_parent_process();

/// Threads that compute in each of `local_world` ranks: `asked`, or for 0 an equal part of the
/// usable cores, at least 1.
int threads_per_rank(const Cores& cores, int local_world, int asked);

/// The cores that local rank `local_rank` keeps to: `threads` of them, no two ranks sharing one.
/// Throws Error(config) when there are not enough.
std::vector<int> cores_of_rank(const Cores& cores, int local_rank, int local_world, int threads);

/// Keeps this thread, and those it will start, to `cores`. Throws Error(config) with the system's
/// words.
void keep_to(const std::vector<int>& cores);

}  // namespace shoal::apps
