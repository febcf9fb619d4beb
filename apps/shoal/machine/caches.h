#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::apps {

/// A cache for data.
struct Cache {
  int level = 1;
  std::int64_t bytes = 0;
  int sharers = 1;  ///< logical cores that share it

  bool operator==(const Cache&) const = default;
};

/// Returns the caches of a core, the fastest first, as Linux tells them; empty where it does not.
std::vector<Cache> caches_of_core(const std::string& folder = "/sys/devices/system/cpu/cpu0/cache");

/// So much memory of each thread that it lies in one place.
struct WorkingSet {
  std::string place;  ///< "L1", "L2", ..., "memory"
  std::int64_t thread_bytes = 0;

  bool operator==(const WorkingSet&) const = default;
};

/// Returns what `threads` threads go through to measure each cache and the memory: half of what a
/// thread has of a cache, where that is more than the faster caches hold, and four times what all
/// caches of `cores` cores hold, 256 MiB at least and a quarter of `available_bytes` at most. Where
/// no caches are known, 16 KiB and 256 KiB stand for them.
std::vector<WorkingSet> working_sets(const std::vector<Cache>& caches, int threads, int cores,
                                     std::int64_t available_bytes);

}  // namespace shoal::apps
