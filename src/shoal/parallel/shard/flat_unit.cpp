#include "shoal/parallel/shard/flat_unit.h"

#include <algorithm>

namespace shoal::parallel {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

std::pair<std::int64_t, std::int64_t> FlatUnit::range(const Member& member, int rank) const {
  const std::int64_t begin = std::clamp<std::int64_t>(rank * shard - member.offset, 0, member.count);
  const std::int64_t end = std::clamp<std::int64_t>((rank + 1) * shard - member.offset, 0, member.count);
  return {begin, end};
}

std::int64_t FlatUnit::place(const Member& member, int rank) const { return std::clamp<std::int64_t>(member.offset - rank * shard, 0, shard); }

std::vector<FlatUnit> flat_units(const std::string& name, const std::vector<std::shared_ptr<nn::Parameter>>& parameters, at::ScalarType type,
                                 int ranks) {
  const std::int64_t line = 64 / static_cast<std::int64_t>(c10::elementSize(type));
  std::vector<FlatUnit> units;
  for (const bool trained : {true, false}) {
    FlatUnit unit{.name = name, .members = {}, .type = type, .trained = trained, .ranks = ranks};
    std::int64_t end = 0;
    for (const auto& parameter : parameters) {
      if (parameter->requires_grad() != trained) continue;
      unit.members.push_back({parameter, end, parameter->tensor().numel()});
      end = round_up(end + unit.members.back().count, line);
    }
    unit.shard = round_up((end + ranks - 1) / ranks, line);
    if (!unit.members.empty()) units.push_back(std::move(unit));
  }
  return units;
}

}  // namespace shoal::parallel
