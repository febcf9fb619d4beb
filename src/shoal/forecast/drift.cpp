#include "shoal/forecast/drift.h"

#include "shoal/base/check.h"

namespace shoal::forecast {
namespace {

/// The factor x for which the sum of (x planned / measured - 1)^2 is least.
struct Factor {
  // Sums over planned / measured.
  double squares = 0;
  double sum = 0;

  void add(double share) {
    squares += share * share;
    sum += share;
  }
  double least() const { return sum / squares; }
};

}  // namespace

Drift drift(const Cluster& cluster, const std::map<std::string, std::vector<TimedKernel>>& now) {
  Factor core;
  Factor memory;
  Factor both;
  for (const auto& [name, timed] : now) {
    const auto then = cluster.kernels.find(name);
    SHOAL_USER_CHECK(then != cluster.kernels.end(), "drift",
                     "{} has no kernels.{}: `shoal plan calibrate` writes them", cluster.name,
                     name);
    for (const TimedKernel& one : timed) {
      SHOAL_USER_CHECK(one.seconds > 0, "drift", "times must be positive: {} s", one.seconds);
      // Planned over measured: of the factor x, the relative error is x share - 1, and x =
      // sum(share) / sum(share^2) has the least squares.
      const double share = then->second.seconds(one.work) / one.seconds;
      (plan::streams_memory(name) ? memory : core).add(share);
      both.add(share);
    }
  }
  SHOAL_USER_CHECK(both.squares > 0, "drift",
                   "{}: nothing was measured again that its kernels explain", cluster.name);
  return {(core.squares > 0 ? core : both).least(), (memory.squares > 0 ? memory : both).least()};
}

Cluster drifted(Cluster cluster, const Drift& drift) {
  for (auto& [name, rate] : cluster.kernels) {
    const double factor = plan::streams_memory(name) ? drift.memory : drift.core;
    // Measurements and fitted numbers alike: a kernel is planned from the former where it has any.
    for (TimedKernel& one : rate.timed) one.seconds *= factor;
    rate.start_s *= factor;
    rate.flop_s *= factor;
    rate.weight_s *= factor;
    rate.byte_s *= factor;
  }
  return cluster;
}

}  // namespace shoal::forecast
