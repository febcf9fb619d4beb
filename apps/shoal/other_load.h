#pragma once

#include <chrono>

namespace shoal::apps {

/// What other processes take of this machine's processors while something is measured.
class OtherLoad {
 public:
  OtherLoad();

  /// How many cores others have kept busy since, in the mean: all but this process, its ended
  /// children and what a hypervisor took. 0 where the system does not tell.
  double cores() const;

 private:
  std::chrono::steady_clock::time_point begin_;
  double others_s_;
};

/// From where on a measurement is disturbed.
inline constexpr double kDisturbing = 0.1;

}  // namespace shoal::apps
