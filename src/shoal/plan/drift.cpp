#include "shoal/plan/drift.h"

#include "shoal/base/check.h"

namespace shoal::plan {
namespace {

/// The parts of a call's time.
struct Parts {
  double core = 0, memory = 0;
};

Parts parts(const KernelRate& rate, const KernelWork& work) {
  const KernelRate line = rate.near(work);
  return {line.start_s + line.flop_s * work.flops + line.byte_s * work.bytes, line.weight_s * work.weights};
}

}  // namespace

Drift drift(const Cluster& cluster, const std::map<std::string, std::vector<TimedKernel>>& now) {
  double cc = 0, cm = 0, mm = 0, c = 0, m = 0;
  for (const auto& [name, timed] : now) {
    const auto then = cluster.kernels.find(name);
    SHOAL_USER_CHECK(then != cluster.kernels.end(), "drift", "{} has no kernels.{}: `shoal plan calibrate` writes them", cluster.name, name);
    for (const TimedKernel& one : timed) {
      SHOAL_USER_CHECK(one.seconds > 0, "drift", "times must be positive: {} s", one.seconds);
      const Parts part = parts(then->second, one.work);
      const double core = part.core / one.seconds, memory = part.memory / one.seconds;
      cc += core * core, cm += core * memory, mm += memory * memory, c += core, m += memory;
    }
  }
  SHOAL_USER_CHECK(cc + mm > 0, "drift", "{}: nothing was measured again that its kernels explain", cluster.name);
  // cc x + cm y = c, cm x + mm y = m; where the two cannot be told apart, both are one number.
  const double both = (c + m) / (cc + 2 * cm + mm), determinant = cc * mm - cm * cm;
  if (determinant < 1e-6 * cc * mm || cc == 0 || mm == 0) return {both, both};
  const Drift found{(c * mm - m * cm) / determinant, (m * cc - c * cm) / determinant};
  return found.core > 0 && found.memory > 0 ? found : Drift{both, both};
}

Cluster drifted(Cluster cluster, const Drift& drift) {
  for (auto& [name, rate] : cluster.kernels) {
    // From the fit as it was, whichever of its times have changed already.
    const KernelRate then = rate;
    for (TimedKernel& one : rate.timed) {
      const Parts part = parts(then, one.work);
      one.seconds *= (drift.core * part.core + drift.memory * part.memory) / (part.core + part.memory);
    }
    rate.start_s *= drift.core, rate.flop_s *= drift.core, rate.byte_s *= drift.core, rate.weight_s *= drift.memory;
  }
  return cluster;
}

}  // namespace shoal::plan
