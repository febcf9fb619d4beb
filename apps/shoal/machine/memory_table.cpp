#include "apps/shoal/machine/memory_table.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/shoal/machine/measured_by.h"

namespace shoal::apps {
namespace {

/// An element-wise operation takes so long on a rank.
struct OperationRate {
  double bytes_per_s = 0;
  double start_s = 0;
};

OperationRate rate_of(const plan::Cluster& cluster) {
  const plan::Efficiency& efficiency = cluster.device.efficiency;
  return {cluster.device.memory_bandwidth * efficiency.memory, efficiency.operation_s};
}

OperationRate measured_rate(const MemoryTable& table) {
  plan::Cluster cluster = table.planned;
  forecast::set_memory(cluster, table.measured.traversals);
  return rate_of(cluster);
}

/// "24 KiB", "64 MiB".
std::string size_text(std::int64_t bytes) {
  const double kib = static_cast<double>(bytes) / 1024;
  return kib < 1024 ? fmt::format("{:.4g} KiB", kib) : fmt::format("{:.4g} MiB", kib / 1024);
}

}  // namespace

std::string memory_text(const MemoryTable& table) {
  std::string text =
      fmt::format("Plain loops, GB/s of all threads\n{:>8}  {:<8} {:>11} {:>9} {:>9} {:>9}\n",
                  "threads", "in", "a thread", "read", "write", "copy");
  for (std::size_t i = 0; i < table.places.size(); ++i) {
    const LoopRate& loop = table.measured.loops[i];
    text += fmt::format("{:>8}  {:<8} {:>11} {:>9.4g} {:>9.4g} {:>9.4g}\n", loop.threads,
                        table.places[i], size_text(loop.thread_bytes), loop.read / 1e9,
                        loop.write / 1e9, loop.copy / 1e9);
  }
  const OperationRate measured = measured_rate(table);
  const OperationRate planned = rate_of(table.planned);
  return text +
         fmt::format(
             "\nElement-wise operations on {}: {:.4g} GB/s from memory, and {:.3g} us each\n"
             "planned by {}: {:.4g} GB/s, and {:.3g} us; {:.2f} times the measured bandwidth\n",
             describe(table.measured.by), measured.bytes_per_s / 1e9, measured.start_s * 1e6,
             table.planned_by, planned.bytes_per_s / 1e9, planned.start_s * 1e6,
             planned.bytes_per_s / measured.bytes_per_s);
}

std::string memory_json(const MemoryTable& table) {
  nlohmann::ordered_json loops = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < table.places.size(); ++i) {
    const LoopRate& loop = table.measured.loops[i];
    loops.push_back({{"threads", loop.threads},
                     {"place", table.places[i]},
                     {"thread_bytes", loop.thread_bytes},
                     {"read_bytes_per_s", loop.read},
                     {"write_bytes_per_s", loop.write},
                     {"copy_bytes_per_s", loop.copy}});
  }
  const auto json = [](const OperationRate& rate) {
    return nlohmann::ordered_json{{"bytes_per_s", rate.bytes_per_s}, {"start_s", rate.start_s}};
  };
  return nlohmann::ordered_json{{"loops", std::move(loops)},
                                {"ranks", table.measured.by.ranks},
                                {"threads", table.measured.by.threads},
                                {"operation", json(measured_rate(table))},
                                {"planned_operation", json(rate_of(table.planned))},
                                {"planned_by", table.planned_by},
                                {"others_cores", table.others_cores}}
             .dump() +
         "\n";
}

}  // namespace shoal::apps
