#include "shoal/forecast/gathers.h"

#include <fmt/format.h>

namespace shoal::forecast {

std::vector<schedule::ShardAction> gather_table(const ModelSpec& spec, const Training& training,
                                                const Cluster& cluster) {
  const std::int64_t shards = training.degrees.shard_ranks();
  // Ranks of one host read the one copy where it lies: nothing is gathered.
  const bool in_place = cluster.runtime == Runtime::kShoal && shards <= cluster.devices_per_host;
  if (training.zero_stage < 3 || shards == 1 || in_place) return {};
  const int units =
      static_cast<int>(spec.family == Family::kMlp ? spec.widths.size() + 1 : spec.layers + 2);
  // Module 0 is the model; it has no parameters but those of the other modules.
  schedule::ShardPlan plan{.reads = {{}},
                           .parent = {-1},
                           .ahead = training.gather_ahead,
                           .reshard_after_forward = training.reshard_after_forward};
  for (int u = 0; u < units; ++u) plan.reads.push_back({u}), plan.parent.push_back(0);
  if (spec.family != Family::kMlp && spec.tied_embeddings) plan.reads.back() = {0, units - 1};
  return schedule::shard_table(plan);
}

std::string describe(const schedule::ShardAction& action, const ModelSpec& spec) {
  constexpr const char* kSteps[] = {"gather", "release", "forward", "backward"};
  const char* step = kSteps[static_cast<int>(action.step)];
  const bool module =
      action.step == schedule::ShardStep::kForward || action.step == schedule::ShardStep::kBackward;
  if (module && action.index == 0) return fmt::format("{} model", step);
  const int unit = action.index - (module ? 1 : 0);
  if (spec.family == Family::kMlp) return fmt::format("{} layers.{}", step, unit);
  if (unit == 0) return fmt::format("{} embedding", step);
  if (unit == spec.layers + 1) return fmt::format("{} head", step);
  return fmt::format("{} blocks.{}", step, unit - 1);
}

}  // namespace shoal::forecast
