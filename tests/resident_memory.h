#pragma once

#include <fstream>

namespace shoal {

/// Returns what this process holds in memory, in megabytes.
inline double resident_megabytes() {
  std::ifstream file("/proc/self/statm");
  double all = 0;
  double resident = 0;
  file >> all >> resident;
  return resident * 4096e-6;
}

}  // namespace shoal
