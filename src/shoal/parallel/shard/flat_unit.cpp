#include "shoal/parallel/shard/flat_unit.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace shoal::parallel {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

std::pair<std::int64_t, std::int64_t> FlatUnit::range(const Member& member, int rank) const {
  const std::int64_t begin =
      std::clamp<std::int64_t>(rank * shard - member.offset, 0, member.count);
  const std::int64_t end =
      std::clamp<std::int64_t>((rank + 1) * shard - member.offset, 0, member.count);
  return {begin, end};
}

std::int64_t FlatUnit::place(const Member& member, int rank) const {
  return std::clamp<std::int64_t>(member.offset - rank * shard, 0, shard);
}

std::vector<FlatUnit> flat_units(const std::string& name,
                                 const std::vector<std::shared_ptr<nn::Parameter>>& parameters,
                                 int ranks) {
  // A map, so that every rank has the units in the same order: trained parameters first.
  std::map<std::tuple<bool, at::ScalarType, at::ScalarType>,
           std::vector<std::shared_ptr<nn::Parameter>>>
      kinds;
  for (const auto& parameter : parameters) {
    kinds[{!parameter->requires_grad(), parameter->tensor().scalar_type(),
           parameter->gradient_type()}]
        .push_back(parameter);
  }
  std::vector<FlatUnit> units;
  for (const auto& [kind, members] : kinds) {
    const auto [frozen, type, gradient_type] = kind;
    // Whole cache lines of the parameters and of their gradients.
    const std::int64_t line = 64 / static_cast<std::int64_t>(std::min(
                                       c10::elementSize(type), c10::elementSize(gradient_type)));
    FlatUnit unit{.name = name,
                  .members = {},
                  .type = type,
                  .gradient_type = gradient_type,
                  .device = members.front()->device(),
                  .trained = !frozen,
                  .ranks = ranks};
    std::int64_t end = 0;
    for (const auto& parameter : members) {
      unit.members.push_back({parameter, end, parameter->tensor().numel()});
      unit.adjusted = unit.adjusted || parameter->adjusted();
      end = round_up(end + unit.members.back().count, line);
    }
    // Shards are whole lines too: no two ranks write to the same one.
    unit.shard = round_up((end + ranks - 1) / ranks, line);
    units.push_back(std::move(unit));
  }
  return units;
}

}  // namespace shoal::parallel
