#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::apps {

/// The processor cores on which a process may compute.
struct Cores {
  std::vector<int> list;  ///< logical cores of the affinity mask, in order
  double quota = 0;       ///< cores' worth of time that the control group grants; 0: no limit

  /// Returns how many threads can run at once: the cores, or the quota rounded up if that is less;
  /// at least 1.
  int usable() const;
};

Cores cores_of_this_process();

/// The cores on which a rank may compute that another launcher has started.
struct BoundCores {
  Cores cores;      ///< with the quota's part that falls to those who share them
  int sharers = 1;  ///< ranks that compute on them, as far as the masks tell
};
/// Returns the cores of one of `local_world` ranks from its own affinity mask `mine` and that of
/// its launcher. A launcher that binds leaves each rank a part of its mask; the ranks then do not
/// share all of it.
BoundCores bound_cores(const Cores& mine, const Cores& launcher, int local_world);

/// Returns the cores in the affinity mask of the process that started this one; empty where the
/// mask cannot be read.
Cores cores_of_parent_process();

/// Returns 1, 2, 4 and so on, and `most`: the numbers of ranks or threads that are measured on so
/// many cores.
std::vector<std::int64_t> doublings(std::int64_t most);

/// Returns the number of threads that compute in each of `local_world` ranks: `asked`, or for 0 an
/// equal part of the usable cores, at least 1.
int threads_per_rank(const Cores& cores, int local_world, int asked);

/// Returns the `threads` cores to which local rank `local_rank` keeps. No two ranks share one.
/// Throws Error(config) when there are not enough.
std::vector<int> cores_of_rank(const Cores& cores, int local_rank, int local_world, int threads);

/// Returns a line that says so where `ranks` ranks of so many threads share fewer usable cores:
/// what is measured is then of less than a core. Nothing where there are enough.
std::string crowding(const Cores& cores, std::int64_t ranks, std::int64_t threads_of_rank);

/// Keeps this thread, and those it will start, to `cores`. Throws Error(config) with the system's
/// message.
void keep_to(const std::vector<int>& cores);

}  // namespace shoal::apps
