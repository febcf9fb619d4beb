#pragma once

#include <chrono>
#include <string>

namespace shoal::apps {

/// Measures what other processes take of this machine's processors while something else is
/// measured.
class OtherLoad {
 public:
  OtherLoad();

  /// Returns how many cores other processes have kept busy since the construction, in the mean;
  /// this process, its ended children and the time that a hypervisor took do not count. Returns 0
  /// where the system does not tell.
  double cores() const;

 private:
  std::chrono::steady_clock::time_point begin_;
  double others_s_;
};

/// From this load on (in cores) a measurement counts as disturbed.
inline constexpr double kDisturbing = 0.1;

/// Returns a line that says so where others kept so many cores busy during a measurement; nothing
/// where they did not disturb it.
std::string disturbance(double others_cores);

}  // namespace shoal::apps
