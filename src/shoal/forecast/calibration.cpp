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

void set_memory(Cluster& cluster, const std::vector<TimedWork>& traversals) {
  Device& device = cluster.device;
  const LineFit traversal = fit_line(traversals);
  // The best rate seen stands for the peak, and the fitted line gives the share of it that an
  // operation of any size reaches.
  device.memory_bandwidth = std::max(best_rate(traversals), traversal.rate);
  device.efficiency.memory = traversal.rate / device.memory_bandwidth;
  device.efficiency.operation_s = traversal.start_s;
  cluster.host.memory_bandwidth =
      device.memory_bandwidth * static_cast<double>(cluster.devices_per_host);
  cluster.host.link_bandwidth = device.memory_bandwidth;
}

void set_products(Cluster& cluster, const std::map<ElementType, std::vector<TimedWork>>& products) {
  const auto f32 = products.find(ElementType::kF32);
  SHOAL_USER_CHECK(f32 != products.end(), "calibrate", "products of {} are missing", "f32");
  Device& device = cluster.device;
  Efficiency& efficiency = device.efficiency;
  const LineFit product = fit_line(f32->second);
  const double share_before = efficiency.matmul;
  device.peak_flops[ElementType::kF32] = std::max(best_rate(f32->second), product.rate);
  efficiency.matmul = product.rate / device.peak_flops[ElementType::kF32];
  // A matmul starts later than an element-wise operation: these are FLOPs lost (Hockney's n1/2).
  efficiency.matmul_ramp_flops =
      std::max(0.0, product.start_s - efficiency.operation_s) * product.rate;
  // Every type has the same share, so the peak of another type is the one that gives its measured
  // rate, or the rate that it had.
  for (auto& [type, peak] : device.peak_flops) {
    if (!products.contains(type)) peak *= share_before / efficiency.matmul;
  }
  for (const auto& [type, timed] : products) {
    if (type != ElementType::kF32)
      device.peak_flops[type] = fit_line(timed).rate / efficiency.matmul;
  }
}

void set_storage(Cluster& cluster, double write_bandwidth, double read_bandwidth) {
  SHOAL_USER_CHECK(write_bandwidth > 0 && read_bandwidth > 0, "calibrate",
                   "bandwidths of storage must be positive: {} bytes/s written, {} read",
                   write_bandwidth, read_bandwidth);
  cluster.storage = {.read_bandwidth = read_bandwidth, .write_bandwidth = write_bandwidth};
}

Cluster calibrated(const Measurements& measured) {
  SHOAL_USER_CHECK(measured.ranks >= 1, "calibrate", "ranks must be positive: {}", measured.ranks);
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
  cluster.host.memory_bytes = measured.memory_bytes;
  cluster.host.devices_at_once = measured.ranks_at_once;
  set_memory(cluster, measured.traversals);
  set_products(cluster, measured.products);
  device.efficiency.link_inside = device.efficiency.link_between = 1;
  // One rank has no link to measure: a copy reads and writes every byte.
  cluster.inside = measured.ranks > 1 ? fit_link(measured) : Link{0, device.memory_bandwidth / 2};
  cluster.between = cluster.inside;
  for (const auto& [name, timed] : measured.kernels)
    cluster.kernels[name] = plan::fit_kernel(timed);
  plan::validate(cluster);
  return cluster;
}

}  // namespace shoal::forecast
