#include "shoal/plan/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/error.h"
#include "shoal/base/units.h"

namespace shoal::plan {
namespace {

[[noreturn]] void reject(const Cluster& cluster, const std::string& what) {
  throw Error(ErrorKind::kConfig, "cluster",
              cluster.name.empty() ? what : cluster.name + ": " + what);
}

void require(const Cluster& cluster, bool holds, const char* field, double value,
             const char* rule) {
  if (!holds || !std::isfinite(value))
    reject(cluster, fmt::format("{} = {}: {}", field, value, rule));
}

void require_share(const Cluster& cluster, const char* field, double value) {
  require(cluster, value > 0 && value <= 1, field, value, "must lie in (0, 1]");
}

// Arguments as data sheets print them: GiB, GB/s and TFLOP/s of one device, links in one direction.
Cluster dgx(const char* name, std::int64_t per_host, double memory_gib, double bandwidth_gbs,
            double f16, double f32, double inside_gbs, double between_gbs) {
  Cluster cluster;
  cluster.name = name;
  cluster.devices_per_host = per_host;
  cluster.device.name = name;
  cluster.device.memory_bytes = memory_gib * kGiB;
  cluster.device.memory_bandwidth = bandwidth_gbs * 1e9;
  cluster.device.peak_flops = {{ElementType::kF16, f16 * 1e12}, {ElementType::kF32, f32 * 1e12}};
  cluster.inside = {5e-6, inside_gbs * 1e9};
  cluster.between = {10e-6, between_gbs * 1e9};
  // memory in bytes; its bandwidth, shared by the devices; the link of one device to it
  cluster.host = {2048 * kGiB, 400e9, 25e9};
  cluster.storage = {100e9, 50e9};
  // Meta, "The Llama 3 herd of models", 2024: 419 unexpected interruptions of 16,384 devices in 54
  // days.
  cluster.device.hours_between_failures = 16384 * 54 * 24.0 / 419;
  return cluster;
}

// The efficiencies of a100 and h100 are minima of the error over published rows.
// tests/plan/fit_presets.cpp fits them, tests/plan/published_times_test.cpp checks that they are
// minima and how well they predict the other rows; docs/reference/published_times.md says what else
// was chosen with those rows in view.
Cluster a100(double memory_gib);

Cluster v100() {
  Cluster cluster = dgx("v100", 16, 32, 900, 125, 15.7, 150, 6.25);
  cluster.source = "DGX-2 data sheet; efficiency as fitted for a100";
  cluster.device.efficiency = a100(80).device.efficiency;
  cluster.device.power_w = 625;
  return cluster;
}

Cluster a100(double memory_gib) {
  Cluster cluster = dgx(memory_gib > 40 ? "a100" : "a100-40gb", 8, memory_gib,
                        memory_gib > 40 ? 2039 : 1555, 312, 19.5, 300, 25);
  cluster.device.peak_flops[ElementType::kBF16] = 312e12;
  cluster.source =
      "DGX A100 data sheet; efficiency fitted on published step times, see "
      "docs/transformer-math.md";
  // Share of the peak, FLOPs lost a matmul, share of the memory bandwidth, seconds an operation,
  // shares of the two links. 1 and 0.98 lie at the bounds of the fit: they stand for what the model
  // leaves out and measure nothing.
  cluster.device.efficiency = {0.7921, 1, 0.7184, 54.48e-6, 0.98, 0.5145};
  cluster.device.power_w = 812;
  cluster.device.price_per_hour = 2;
  return cluster;
}

Cluster h100(const char* name, double memory_gib, double bandwidth_gbs) {
  Cluster cluster = dgx(name, 8, memory_gib, bandwidth_gbs, 989.4, 67, 450, 50);
  cluster.device.peak_flops[ElementType::kBF16] = 989.4e12;
  cluster.device.peak_flops[ElementType::kF8E4M3] = 1978.9e12;
  cluster.source =
      "DGX H100 data sheet; efficiency fitted on published step times, see "
      "docs/transformer-math.md";
  cluster.device.efficiency = {0.6464, 17.11e9, 0.3219, 3.589e-6, 0.98, 0.5178};
  cluster.device.power_w = 1275;
  cluster.device.price_per_hour = 3;
  return cluster;
}

Cluster b200() {
  Cluster cluster = h100("b200", 180, 8000);
  cluster.source = "DGX B200 data sheet; efficiency as fitted for h100";
  cluster.device.peak_flops = {{ElementType::kF16, 2250e12},
                               {ElementType::kBF16, 2250e12},
                               {ElementType::kF8E4M3, 4500e12},
                               {ElementType::kF32, 80e12}};
  cluster.inside.bandwidth = 900e9;
  cluster.device.power_w = 1790;
  cluster.device.price_per_hour = 5;
  return cluster;
}

/// Hosts of 32 cores with AVX-512 that run one process each, on ten-gigabit Ethernet.
Cluster cpu() {
  Cluster cluster;
  cluster.name = cluster.device.name = "cpu";
  cluster.source =
      "a 32-core server: 2.5 GHz x 64 FLOP a cycle a core, eight channels of DDR4-3200";
  cluster.device.memory_bytes = 256 * kGiB;
  cluster.device.memory_bandwidth = 204.8e9;
  cluster.device.peak_flops = {{ElementType::kF32, 5.12e12}, {ElementType::kBF16, 5.12e12}};
  cluster.device.efficiency = {0.7, 1e7, 0.6, 5e-6, 0.6, 0.8};
  cluster.device.power_w = 400;
  cluster.device.hours_between_failures = 3 * 365 * 24;
  cluster.inside = {1e-6, 10e9};
  cluster.between = {30e-6, 1.25e9};
  cluster.storage = {1e9, 1e9};
  cluster.runtime = Runtime::kShoal;
  return cluster;
}

/// Hosts of eight A100 that are connected over the internet.
Cluster wan() {
  Cluster cluster = a100(80);
  cluster.name = "wan";
  cluster.source = "a100 hosts on links of 1 Gbit/s a host with 50 ms";
  // 1 Gbit/s = 125 MB/s a host, shared by its eight devices.
  cluster.between = {50e-3, 125e6 / 8};
  cluster.device.efficiency.link_between = 0.8;
  return cluster;
}

}  // namespace

const char* name(Runtime runtime) { return runtime == Runtime::kShoal ? "shoal" : "published"; }

std::optional<Runtime> runtime(std::string_view name) {
  if (name == "published") return Runtime::kPublished;
  if (name == "shoal") return Runtime::kShoal;
  return std::nullopt;
}

double Cluster::peak(ElementType type) const {
  const auto at = device.peak_flops.find(type);
  if (at == device.peak_flops.end()) {
    throw Error(
        ErrorKind::kConfig, "cluster",
        fmt::format("{}: device {} has no peak for {}", name, device.name, shoal::name(type)))
        .hint("add it to the cluster file, or choose another precision");
  }
  return at->second;
}

void validate(const Cluster& cluster) {
  constexpr const char* kPositive = "must be positive";
  constexpr const char* kNotNegative = "must not be negative";
  const Device& device = cluster.device;
  require(cluster, cluster.hosts >= 1 && cluster.hosts <= 10000000, "hosts", cluster.hosts,
          "must lie between 1 and 10,000,000");
  require(cluster, cluster.devices_per_host >= 1 && cluster.devices_per_host <= 100000,
          "devices_per_host", cluster.devices_per_host, "must lie between 1 and 100,000");
  require(cluster, device.memory_bytes > 0, "device.memory_bytes", device.memory_bytes, kPositive);
  require(cluster, device.memory_bandwidth > 0, "device.memory_bandwidth", device.memory_bandwidth,
          kPositive);
  // Maps are checked entry by entry, so that an error names the one that is wrong.
  if (device.peak_flops.empty())
    reject(cluster, "device.peak_flops is empty: at least one element type needs a peak");
  for (const auto& [type, peak] : device.peak_flops) {
    require(cluster, peak > 0, fmt::format("device.peak_flops.{}", name(type)).c_str(), peak,
            kPositive);
  }
  require(cluster, device.power_w >= 0, "device.power_w", device.power_w, kNotNegative);
  require(cluster, device.price_per_hour >= 0, "device.price_per_hour", device.price_per_hour,
          kNotNegative);
  require(cluster, device.hours_between_failures >= 0, "device.hours_between_failures",
          device.hours_between_failures, kNotNegative);
  const Efficiency& efficiency = device.efficiency;
  require_share(cluster, "efficiency.matmul", efficiency.matmul);
  require_share(cluster, "efficiency.memory", efficiency.memory);
  require_share(cluster, "efficiency.link_inside", efficiency.link_inside);
  require_share(cluster, "efficiency.link_between", efficiency.link_between);
  require(cluster, efficiency.matmul_ramp_flops >= 0, "efficiency.matmul_ramp_flops",
          efficiency.matmul_ramp_flops, kNotNegative);
  require(cluster, efficiency.operation_s >= 0, "efficiency.operation_s", efficiency.operation_s,
          kNotNegative);
  for (const auto& [where, link] :
       {std::pair{"inside", cluster.inside}, std::pair{"between", cluster.between}}) {
    require(cluster, link.latency_s >= 0, fmt::format("{}.latency_s", where).c_str(),
            link.latency_s, kNotNegative);
    require(cluster, link.bandwidth > 0, fmt::format("{}.bandwidth", where).c_str(), link.bandwidth,
            kPositive);
  }
  require(cluster, cluster.host.memory_bytes >= 0, "host.memory_bytes", cluster.host.memory_bytes,
          kNotNegative);
  require(cluster, cluster.host.memory_bandwidth >= 0, "host.memory_bandwidth",
          cluster.host.memory_bandwidth, kNotNegative);
  require(cluster, cluster.host.devices_at_once >= 0, "host.devices_at_once",
          cluster.host.devices_at_once, kNotNegative);
  require(cluster, cluster.host.link_bandwidth >= 0, "host.link_bandwidth",
          cluster.host.link_bandwidth, kNotNegative);
  require(cluster, cluster.storage.read_bandwidth >= 0, "storage.read_bandwidth",
          cluster.storage.read_bandwidth, kNotNegative);
  for (const auto& [kernel, rate] : cluster.kernels) {
    for (const auto& [part, value] : {std::pair{"start_s", rate.start_s},
                                      {"flop_s", rate.flop_s},
                                      {"weight_s", rate.weight_s},
                                      {"byte_s", rate.byte_s}}) {
      require(cluster, value >= 0, fmt::format("kernels.{}.{}", kernel, part).c_str(), value,
              kNotNegative);
    }
  }
  for (const auto& [kernel, rate] : cluster.kernels) {
    for (const auto& [work, seconds] : rate.timed) {
      const double least = std::min({work.flops, work.weights, work.bytes});
      require(cluster, least >= 0, fmt::format("kernels.{}.timed", kernel).c_str(), least,
              kNotNegative);
      require(cluster, seconds > 0, fmt::format("kernels.{}.timed", kernel).c_str(), seconds,
              kPositive);
    }
  }
  require(cluster, cluster.storage.write_bandwidth >= 0, "storage.write_bandwidth",
          cluster.storage.write_bandwidth, kNotNegative);
}

std::vector<std::string> cluster_names() {
  return {"v100", "a100", "a100-40gb", "h100", "h200", "b200", "cpu", "wan"};
}

std::optional<Cluster> cluster_preset(std::string_view name) {
  if (name == "v100") return v100();
  if (name == "a100") return a100(80);
  if (name == "a100-40gb") return a100(40);
  if (name == "h100") return h100("h100", 80, 3352);
  if (name == "h200") return h100("h200", 141, 4800);
  if (name == "b200") return b200();
  if (name == "cpu") return cpu();
  if (name == "wan") return wan();
  return std::nullopt;
}

Cluster with_devices(Cluster cluster, std::int64_t devices) {
  if (devices < 1) {
    throw Error(ErrorKind::kUsage, "plan",
                fmt::format("devices = {}: must be at least 1", devices));
  }
  // Four devices of hosts of eight are one host of four.
  if (devices < cluster.devices_per_host) cluster.devices_per_host = devices;
  if (devices % cluster.devices_per_host != 0) {
    throw Error(ErrorKind::kUsage, "plan",
                fmt::format("devices = {}: must be a multiple of the {} devices of a {} host",
                            devices, cluster.devices_per_host, cluster.name));
  }
  cluster.hosts = devices / cluster.devices_per_host;
  return cluster;
}

}  // namespace shoal::plan
