#include "apps/shoal/cluster_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "shoal/base/element_type.h"

namespace shoal::apps {
namespace {

using plan::Cluster;

constexpr const char* kPositive = "a number above 0";
constexpr const char* kNotNegative = "a number of at least 0";
constexpr const char* kShare = "a number above 0, at most 1";

constexpr std::string_view kHead = R"(# The cluster file

`shoal plan --help-cluster` prints this page. A cluster file tells the planner what it plans for:
`shoal plan --cluster FILE`, where FILE may also be the name of a preset. `shoal plan calibrate`
measures this machine and writes such a file, and `shoal bench products | memory | storage` with
`--update` put their figures into one ([page](../how_to/measure_a_machine.md)). One of your own may
be as short as this:

```toml
preset = "h100"           # every value below replaces one of the preset's
hosts = 16
[device]
price_per_hour = 2.5
[between]
bandwidth = 25e9          # 200 Gbit/s for each device
```

All units are SI: bytes, bytes/s, FLOP/s, seconds. Unknown keys, values of another kind and values
that a key does not take are refused with file, line and rule. A value that is left out is that of
the preset, or without one that of the tables.

## Keys outside a section

| key | value | left out | meaning |
|---|---|---|---|
)";

constexpr std::string_view kPeaks = R"(
## [device.peak_flops]

Without a preset at least one is needed.

| key | value | meaning |
|---|---|---|
| {} | a number above 0 | FLOP/s of dense matmuls of this element type |
)";

constexpr std::string_view kKernels = R"(
## [kernels.NAME]

Measured times of Shoal's own kernels, which `shoal plan calibrate` writes
([how they are used](../transformer-math.md#shoals-own-steps)). A call takes

    start_s + flop_s × FLOPs + weight_s × bytes of weights or states + byte_s × bytes of activations

| key | value | meaning |
|---|---|---|
| NAME | one of {} | the kernel |
| `start_s`, `flop_s`, `weight_s`, `byte_s` | a number of at least 0 | seconds, see above |
| `timed` | a list of `[FLOPs, bytes of weights or states, bytes of activations, seconds]` | the measurements: where there are some, the four numbers are fitted anew for every call that is planned |
)";

constexpr std::string_view kTcp = R"(
## [tcp]

The cost of messages over TCP, by which a job may choose its algorithms
(`parallelism.link_costs`, [page](../concepts/transports.md#tcp)); `calibrate` writes it too.

| key | value | meaning |
|---|---|---|
| `inside_latency_s`, `between_latency_s` | a number of at least 0 | seconds of an empty message inside a host, and between hosts |
| `inside_bandwidth`, `between_bandwidth` | a number above 0 | bytes/s inside a host, and between hosts |
| `message_s` | a number of at least 0 | seconds that a rank is busy with a message, whatever its size |
| `fold_bandwidth` | a number above 0 | bytes/s at which received elements are reduced into a result |
)";

void add_line(std::string& text, std::string_view key, std::string_view takes,
              std::string_view left_out, std::string_view meaning) {
  text += fmt::format("| `{}` | {} | {} | {} |\n", key, takes, left_out, meaning);
}

}  // namespace

std::vector<ClusterNumber> cluster_numbers(Cluster& cluster) {
  plan::Device& device = cluster.device;
  plan::Efficiency& efficiency = device.efficiency;
  return {
      {"device.memory_bytes", &device.memory_bytes, kPositive, "memory of one device in bytes"},
      {"device.memory_bandwidth", &device.memory_bandwidth, kPositive, "its bandwidth in bytes/s"},
      {"device.power_w", &device.power_w, kNotNegative,
       "watts of one device in training, with its share of the host"},
      {"device.price_per_hour", &device.price_per_hour, kNotNegative,
       "price of one device for an hour; 0: not known"},
      {"device.hours_between_failures", &device.hours_between_failures, kNotNegative,
       "mean time between failures of one device; 0: it never fails"},
      {"device.efficiency.matmul", &efficiency.matmul, kShare,
       "share of `peak_flops` that a large matmul reaches"},
      {"device.efficiency.matmul_ramp_flops", &efficiency.matmul_ramp_flops, kNotNegative,
       "FLOPs that every matmul loses to filling the device: it takes (FLOPs + ramp) / (matmul × "
       "peak)"},
      {"device.efficiency.memory", &efficiency.memory, kShare,
       "share of `memory_bandwidth` that element-wise operations reach"},
      {"device.efficiency.operation_s", &efficiency.operation_s, kNotNegative,
       "fixed seconds of every operation"},
      {"device.efficiency.link_inside", &efficiency.link_inside, kShare,
       "share of `inside.bandwidth` that collectives reach"},
      {"device.efficiency.link_between", &efficiency.link_between, kShare,
       "share of `between.bandwidth` that collectives reach"},
      {"inside.latency_s", &cluster.inside.latency_s, kNotNegative,
       "seconds of an empty message between two devices of one host"},
      {"inside.bandwidth", &cluster.inside.bandwidth, kPositive,
       "bytes/s of one device to its peers on the host, in one direction"},
      {"between.latency_s", &cluster.between.latency_s, kNotNegative,
       "seconds of an empty message between two hosts"},
      {"between.bandwidth", &cluster.between.bandwidth, kPositive,
       "bytes/s of one device to other hosts, in one direction: the link of the host divided by "
       "its devices where they share it"},
      {"host.memory_bytes", &cluster.host.memory_bytes, kNotNegative,
       "memory of the host in bytes, for what is offloaded; 0: nothing can be"},
      {"host.memory_bandwidth", &cluster.host.memory_bandwidth, kNotNegative,
       "its bandwidth in bytes/s, which the devices share"},
      {"host.link_bandwidth", &cluster.host.link_bandwidth, kNotNegative,
       "bytes/s between one device and the host's memory, in one direction"},
      {"host.devices_at_once", &cluster.host.devices_at_once, kNotNegative,
       "devices that compute at the same time where they share cores; 0: all"},
      {"storage.read_bandwidth", &cluster.storage.read_bandwidth, kNotNegative,
       "bytes/s at which the whole cluster reads checkpoints; 0: not known"},
      {"storage.write_bandwidth", &cluster.storage.write_bandwidth, kNotNegative,
       "bytes/s at which it writes them; 0: not known"}};
}

std::string cluster_reference() {
  Cluster cluster;
  std::string text(kHead);
  add_line(text, "preset", fmt::format("one of {}", fmt::join(plan::cluster_names(), ", ")), "none",
           "the cluster whose values this file changes");
  add_line(text, "name", "a text", "none", "its name in plans and errors");
  add_line(text, "source", "a text", "none", "the publication or measurement of the figures");
  add_line(text, "runtime", "one of published, shoal", name(cluster.runtime),
           "the software that trains: systems of the literature (Megatron-LM, DeepSpeed, FSDP), or "
           "Shoal on hosts whose ranks share memory");
  add_line(text, "hosts", "a whole number from 1 to 10,000,000", fmt::to_string(cluster.hosts),
           "hosts; `--devices` may ask for others");
  add_line(text, "devices_per_host", "a whole number from 1 to 100,000",
           fmt::to_string(cluster.devices_per_host), "devices of one host; on CPUs, ranks");
  std::string_view section;
  for (const ClusterNumber& number : cluster_numbers(cluster)) {
    const std::string_view key = number.key;
    const std::size_t dot = key.rfind('.');
    if (key.substr(0, dot) != section) {
      section = key.substr(0, dot);
      text += fmt::format("\n## [{}]\n\n| key | value | left out | meaning |\n|---|---|---|---|\n",
                          section);
      if (section == "device") add_line(text, "name", "a text", "none", "the name of the device");
    }
    const double value = *number.value;
    const bool needed = value == 0 && number.takes != kNotNegative;
    add_line(text, key.substr(dot + 1), number.takes, needed ? "needed" : fmt::format("{}", value),
             number.meaning);
  }
  std::vector<std::string> types;
  for (int i = 0; i <= static_cast<int>(ElementType::kC128); ++i) {
    const auto type = static_cast<ElementType>(i);
    if (is_floating(type)) types.push_back(fmt::format("`{}`", name(type)));
  }
  text += fmt::format(kPeaks, fmt::join(types, ", "));
  text += fmt::format(kKernels, fmt::join(plan::kernel_names(), ", "));
  text += kTcp;
  return text;
}

}  // namespace shoal::apps
