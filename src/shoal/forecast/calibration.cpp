#include "shoal/forecast/calibration.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/check.h"

namespace shoal::forecast {
namespace {

double best_rate(const std::vector<TimedWork>& timed) {
  double best = 0;
  for (const TimedWork& one : timed) best = std::max(best, one.work / one.seconds);
  return best;
}

/// Returns the link of one rank to its peers. An all-reduce costs 2 (n - 1) latencies and moves 2
/// (n - 1)/n of its buffer.
Link fit_link(const Measurements& measured) {
  const double n = measured.ranks;
  const LineFit line = fit_line(measured.all_reduces);
  return {line.start_s / (2 * (n - 1)), line.rate * 2 * (n - 1) / n};
}

}  // namespace

LineFit fit_line(const std::vector<TimedWork>& timed) {
  // The sum of ((a + b w) / t - 1)^2 is least; its derivatives are linear in a and b.
  double aa = 0;
  double ab = 0;
  double bb = 0;
  double a1 = 0;
  double b1 = 0;
  double least = 1e300;
  double most = 0;
  // Relative errors, because times go over several powers of ten: absolute ones would fit the
  // largest message alone.
  for (const auto& [work, t] : timed) {
    SHOAL_USER_CHECK(work > 0 && t > 0, "calibrate", "work and time must be positive: {} in {} s",
                     work, t);
    const double x = 1 / t;
    const double y = work / t;
    aa += x * x;
    ab += x * y;
    bb += y * y;
    a1 += x;
    b1 += y;
    least = std::min(least, work);
    most = std::max(most, work);
  }
  SHOAL_USER_CHECK(most > least, "calibrate",
                   "two different amounts of work are needed to tell start from rate: {} measured",
                   timed.size());
  const double determinant = aa * bb - ab * ab;
  const double start = (a1 * bb - b1 * ab) / determinant;
  const double slope = (aa * b1 - ab * a1) / determinant;
  if (start >= 0 && slope > 0) return {start, 1 / slope};
  // Noise hides the start.
  return {0, bb / b1};
}

collective::CostModel message_costs(const MessageTimes& measured) {
  SHOAL_USER_CHECK(measured.message_s >= 0 && measured.fold.work > 0 && measured.fold.seconds > 0,
                   "calibrate", "times must be positive: {} s a message, {} bytes folded in {} s",
                   measured.message_s, measured.fold.work, measured.fold.seconds);
  const LineFit line = fit_line(measured.one_way);
  collective::CostModel costs;
  // An empty message takes latency + 2 overheads, one at each end; what is left of the start is the
  // latency.
  costs.inside = {std::max(0.0, line.start_s - 2 * measured.message_s), 1 / line.rate};
  costs.overhead = std::min(measured.message_s, line.start_s / 2);
  costs.fold = measured.fold.seconds / measured.fold.work;
  return costs;
}

Cluster calibrated(const Measurements& measured) {
  SHOAL_USER_CHECK(measured.ranks >= 1, "calibrate", "ranks must be positive: {}", measured.ranks);
  SHOAL_USER_CHECK(measured.products.contains(ElementType::kF32), "calibrate",
                   "products of f32 are missing");
  Cluster cluster;
  cluster.name = cluster.device.name = measured.name;
  cluster.source =
      fmt::format("shoal plan calibrate, {} ranks at work; links between hosts are not measured",
                  measured.ranks);
  cluster.runtime = Runtime::kShoal;
  cluster.hosts = 1;
  cluster.devices_per_host = measured.ranks;
  Device& device = cluster.device;
  device.memory_bytes = measured.memory_bytes / measured.ranks;
  const LineFit traversal = fit_line(measured.traversals);
  const LineFit product = fit_line(measured.products.at(ElementType::kF32));
  // The best rate seen stands for the peak, and the fitted line gives the share of it that an
  // operation of any size reaches.
  device.memory_bandwidth = std::max(best_rate(measured.traversals), traversal.rate);
  Efficiency& efficiency = device.efficiency;
  efficiency.memory = traversal.rate / device.memory_bandwidth;
  efficiency.operation_s = traversal.start_s;
  device.peak_flops[ElementType::kF32] =
      std::max(best_rate(measured.products.at(ElementType::kF32)), product.rate);
  efficiency.matmul = product.rate / device.peak_flops[ElementType::kF32];
  // What a matmul needs to start beyond an element-wise operation, as FLOPs lost (Hockney's n1/2).
  efficiency.matmul_ramp_flops = std::max(0.0, product.start_s - traversal.start_s) * product.rate;
  // Every type has the same share, so the peak of another type is the one that gives its measured
  // rate.
  for (const auto& [type, timed] : measured.products) {
    if (type != ElementType::kF32)
      device.peak_flops[type] = fit_line(timed).rate / efficiency.matmul;
  }
  efficiency.link_inside = efficiency.link_between = 1;
  // One rank has no link to measure: a copy reads and writes every byte.
  cluster.inside = measured.ranks > 1 ? fit_link(measured) : Link{0, device.memory_bandwidth / 2};
  cluster.between = cluster.inside;
  cluster.host = {measured.memory_bytes, device.memory_bandwidth * measured.ranks,
                  device.memory_bandwidth, measured.ranks_at_once};
  for (const auto& [name, timed] : measured.kernels)
    cluster.kernels[name] = plan::fit_kernel(timed);
  plan::validate(cluster);
  return cluster;
}

}  // namespace shoal::forecast
