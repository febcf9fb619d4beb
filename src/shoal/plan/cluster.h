#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/element_type.h"
#include "shoal/plan/kernel_rate.h"

namespace shoal::plan {

/// The share of a device's published figures that a program gets: six numbers that `shoal plan
/// calibrate` measures, or that were fitted on published step times.
struct Efficiency {
  double matmul = 0.8;  ///< share of the peak that a large matmul reaches
  /// Work that every matmul loses to filling the device (Hockney's n1/2): a matmul takes (flops +
  /// ramp) / (matmul x peak).
  double matmul_ramp_flops = 0;
  double memory = 0.8;        ///< share of the memory bandwidth that element-wise operations reach
  double operation_s = 0;     ///< fixed time of every operation
  double link_inside = 0.8;   ///< share of the inside link's bandwidth that collectives reach
  double link_between = 0.8;  ///< share of the link between hosts

  bool operator==(const Efficiency&) const = default;
};

struct Device {
  std::string name;
  double memory_bytes = 0;
  double memory_bandwidth = 0;               ///< bytes/s
  std::map<ElementType, double> peak_flops;  ///< FLOP/s of dense matmuls
  Efficiency efficiency;
  double power_w = 0;                 ///< power while training, with its share of the host
  double price_per_hour = 0;          ///< 0: unknown
  double hours_between_failures = 0;  ///< mean of one device; 0: never fails

  bool operator==(const Device&) const = default;
};

/// The link of one device to its peers, in one direction.
struct Link {
  double latency_s = 0;
  double bandwidth = 0;  ///< bytes/s per device

  bool operator==(const Link&) const = default;
};

/// The host beside its devices. Zeros mean that it is not described, and nothing can be offloaded.
struct Host {
  double memory_bytes = 0;
  double memory_bandwidth = 0;  ///< bytes/s, shared by its devices
  /// Bytes/s between one device and the host's memory, in one direction.
  double link_bandwidth = 0;
  /// Devices that compute at the same time where they share cores; 0: all.
  double devices_at_once = 0;

  bool described() const { return memory_bytes > 0 && memory_bandwidth > 0 && link_bandwidth > 0; }

  bool operator==(const Host&) const = default;
};

struct Storage {
  double read_bandwidth = 0;  ///< bytes/s of the whole cluster; 0: not described
  double write_bandwidth = 0;

  bool operator==(const Storage&) const = default;
};

/// The software that trains on a cluster: each needs other memory for the same mesh, and does other
/// work beside the matmuls.
enum class Runtime {
  /// Systems of the literature on accelerators (Megatron-LM, DeepSpeed, FSDP), as their papers
  /// describe them.
  kPublished,
  kShoal,  ///< Shoal on hosts whose ranks share memory
};
const char* name(Runtime runtime);
std::optional<Runtime> runtime(std::string_view name);  ///< "published", "shoal"

struct Cluster {
  std::string name;
  std::string source;  ///< the publication or measurement of the figures
  std::int64_t hosts = 1;
  std::int64_t devices_per_host = 1;
  Device device;
  Link inside;   ///< between devices of one host
  Link between;  ///< between hosts
  Host host;
  Storage storage;
  Runtime runtime = Runtime::kPublished;
  /// Runtime::kShoal: the times of its kernels by the names of kernel_rate.h. All devices of a host
  /// ran them at the same time, so that they include what ranks cost each other, memory bandwidth
  /// first. Empty: not measured; the figures of `device` are used.
  std::map<std::string, KernelRate> kernels;

  std::int64_t devices() const { return hosts * devices_per_host; }
  /// Throws Error(config) when the device has no such peak.
  double peak(ElementType type) const;
  bool operator==(const Cluster&) const = default;
};

/// Throws Error(config) that names the field, its value and the rule.
void validate(const Cluster& cluster);

/// Returns a preset: "v100", "a100", "a100-40gb", "h100", "h200", "b200" (hosts of eight or
/// sixteen), "cpu", "wan"; empty when there is none.
std::optional<Cluster> cluster_preset(std::string_view name);
std::vector<std::string> cluster_names();

/// Returns the cluster with enough hosts for so many devices. Fewer devices than one host has make
/// a smaller host. Throws Error(usage) when they do not fill the hosts.
Cluster with_devices(Cluster cluster, std::int64_t devices);

}  // namespace shoal::plan
