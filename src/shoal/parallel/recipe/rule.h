#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shoal/model/model_spec.h"
#include "shoal/model/tensor_division.h"
#include "shoal/plan/placement.h"

namespace shoal::parallel {

using model::Boundary;
using plan::Placement;

/// "stream", "replicate", "shard(-1)", "partial": as recipes write it.
const char* name(Boundary boundary);

/// Says how the ranks along the axis tp divide the modules whose path fits a pattern. Entries that
/// it leaves out follow from the others, or are as in the default recipe.
struct Rule {
  std::string module;  ///< a pattern of paths, in which * stands for any text
  std::map<std::string, Placement> parameters;  ///< by local name: weight, bias
  /// How the activation lies that the module takes, and that it gives. The module redistributes an
  /// input or output that differs from what its parameters need.
  std::optional<Boundary> input;
  std::optional<Boundary> output;

  bool operator==(const Rule&) const = default;
};

/// Rules in their order: the first whose pattern fits a module counts.
using Recipe = std::vector<Rule>;

/// "blocks.*.mlp.up: weight shard(0), bias shard(0), output shard(-1)", which parse_rule reads.
std::string text_of(const Rule& rule);

}  // namespace shoal::parallel
