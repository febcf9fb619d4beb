#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/shoal/cluster_file.h"
#include "apps/shoal/plan/commands.h"
#include "shoal/base/error.h"
#include "shoal/base/units.h"

namespace shoal::apps {
void print_model_states(const PlanOptions& options) {
  if (!(options.parameters > 0) || !std::isfinite(options.parameters))
    reject(fmt::format("--parameters {}: must be positive", options.parameters));
  for (const auto& [option, ranks] : {std::pair{"devices", options.devices},
                                      {"dp", options.dp},
                                      {"tp", options.tp},
                                      {"pp", options.pp}}) {
    if (ranks < 0 || ranks > kMostDevices)
      reject(fmt::format("--{} {}: must lie between 1 and {}", option, ranks, kMostDevices));
  }
  const std::int64_t split =
      std::max<std::int64_t>(1, options.tp) * std::max<std::int64_t>(1, options.pp);
  if (split > kMostDevices) {
    reject(
        fmt::format("--tp {}: tp x pp = {} must be at most {}", options.tp, split, kMostDevices));
  }
  if (options.devices % split != 0)
    reject(fmt::format("--devices {}: tp x pp = {} must divide it", options.devices, split));
  // The states of a model-parallel rank are sharded over the data ranks, not over all devices.
  std::int64_t ranks = 1;
  if (options.devices > 0) ranks = options.devices / split;
  if (options.dp > 0) ranks = options.dp;
  if (options.devices > 0 && ranks * split != options.devices) {
    reject(fmt::format("--devices {}: the mesh dp {} x tp x pp {} has {}", options.devices, ranks,
                       split, ranks * split));
  }
  const int stage = std::max(0, options.zero);
  const std::string precision =
      options.precision.empty() ? plan::Training{}.precision : options.precision;
  const auto number =
      plan::precision(precision, options.optimizer.empty() ? plan::Optimizer::kAdam
                                                           : optimizer_of(options.optimizer));
  if (!number) {
    reject(fmt::format("--precision {}: must be one of {}", precision,
                       fmt::join(plan::precision_names(), ", ")));
  }
  const auto held = plan::state_bytes(number->state, stage, static_cast<double>(ranks));
  const double own = options.parameters / static_cast<double>(split);
  const double bytes = own * held.all();
  const auto cluster =
      options.cluster.empty() ? std::nullopt : std::optional(load_cluster(options.cluster));
  if (options.json) {
    nlohmann::ordered_json json{{"parameters", options.parameters},
                                {"devices", ranks * split},
                                {"dp", ranks},
                                {"zero", stage},
                                {"precision", precision},
                                {"bytes_per_parameter", held.all()},
                                {"model_state_bytes", bytes}};
    if (cluster) {
      json["device_memory_bytes"] = cluster->device.memory_bytes;
      json["states_fit"] = bytes <= cluster->device.memory_bytes;
    }
    fmt::print("{}\n", json.dump(2));
    return;
  }
  const std::string cut = split > 1 ? fmt::format(", 1/{} on each model-parallel rank", split) : "";
  fmt::print(
      "{:.4g} parameters{}, {}, ZeRO {} over {} ranks: {:.4g} + {:.4g} + {:.4g} bytes each "
      "(parameter, gradient, optimizer): {:.4g} GB ({:.4g} GiB) "
      "a rank\n",
      options.parameters, cut, precision, stage, ranks, held.parameter, held.gradient,
      held.optimizer(), bytes / 1e9, bytes / kGiB);
  if (cluster) {
    fmt::print("A device of {} has {:.4g} GiB: the states alone {}\n", cluster->name,
               cluster->device.memory_bytes / kGiB,
               bytes <= cluster->device.memory_bytes ? "fit" : "do not fit");
  }
}

}  // namespace shoal::apps
