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

/// How much of a device's published figures a program gets: six numbers, measured by `shoal plan
/// calibrate` or fitted on published step times.
struct Efficiency {
  double matmul = 0.8;           ///< share of the peak that a large product reaches
  double matmul_ramp_flops = 0;  ///< work lost in every product to filling the device (Hockney's
                                 ///< n1/2): time = (flops + ramp) / (matmul peak)
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
  std::map<ElementType, double> peak_flops;  ///< FLOP/s of matrix products, dense
  Efficiency efficiency;
  double power_w = 0;                 ///< drawn while training, with its share of the host
  double price_per_hour = 0;          ///< 0: unknown
  double hours_between_failures = 0;  ///< of one device; 0: never fails

  bool operator==(const Device&) const = default;
};

/// What one device has towards its peers, in one direction.
struct Link {
  double latency_s = 0;
  double bandwidth = 0;  ///< bytes/s per device

  bool operator==(const Link&) const = default;
};

/// What stands beside the devices; zeros: not described, and nothing can be offloaded.
struct Host {
  double memory_bytes = 0;
  double memory_bandwidth = 0;  ///< bytes/s, shared by its devices
  double link_bandwidth =
      0;  ///< bytes/s between one device and the host's memory, in one direction

  bool described() const { return memory_bytes > 0 && memory_bandwidth > 0 && link_bandwidth > 0; }

  bool operator==(const Host&) const = default;
};

struct Storage {
  double read_bandwidth = 0;  ///< bytes/s of the whole cluster; 0: not described
  double write_bandwidth = 0;

  bool operator==(const Storage&) const = default;
};

/// Whose software trains on a cluster: the same mesh takes other memory, and other work beside the
/// products, in each.
enum class Runtime {
  kPublished,  ///< systems of the literature on accelerators (Megatron-LM, DeepSpeed, FSDP): what
               ///< their papers describe
  kShoal,      ///< Shoal on hosts whose ranks share memory
};
const char* name(Runtime runtime);
std::optional<Runtime> runtime(std::string_view name);  ///< "published", "shoal"

struct Cluster {
  std::string name;
  std::string source;  ///< where the figures come from
  std::int64_t hosts = 1;
  std::int64_t devices_per_host = 1;
  Device device;
  Link inside;   ///< between devices of one host
  Link between;  ///< between hosts
  Host host;
  Storage storage;
  Runtime runtime = Runtime::kPublished;
  /// Runtime::kShoal: what its kernels take when all devices of a host run them at the same time,
  /// by the names of kernel_rate.h. They are measured with what one rank's work costs another
  /// inside, memory bandwidth first. Empty: not measured, and `device` stands for them.
  std::map<std::string, KernelRate> kernels;

  std::int64_t devices() const { return hosts * devices_per_host; }
  /// Throws Error(config) when the device has no such peak.
  double peak(ElementType type) const;
  bool operator==(const Cluster&) const = default;
};

/// Throws Error(config) that names the field, its value and the rule.
void validate(const Cluster& cluster);

/// "v100", "a100", "a100-40gb", "h100", "h200", "b200" (hosts of eight or sixteen), "cpu", "wan";
/// empty when there is none.
std::optional<Cluster> cluster_preset(std::string_view name);
std::vector<std::string> cluster_names();

/// The same cluster with enough hosts for so many devices; fewer than one host's devices make a
/// smaller host.
Cluster with_devices(Cluster cluster, std::int64_t devices);

}  // namespace shoal::plan
