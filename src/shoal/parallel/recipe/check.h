#pragma once

#include <cstdint>
#include <vector>

#include "shoal/parallel/recipe/leaf_modules.h"
#include "shoal/parallel/recipe/rule.h"

namespace shoal::parallel {

/// A module, and how the ranks of tp divide it and what it reads and gives.
///
///   input --move--> needs, the product with the parameters as they lie, computes --move--> output
struct PlacedModule {
  LeafModule module;
  std::map<std::string, Placement> parameters;  ///< of all that the module has
  Boundary input = Boundary::kStream;           ///< as it arrives
  Boundary needs = Boundary::kStream;           ///< as the parameters need it
  Boundary computes = Boundary::kStream;        ///< as the parameters give it
  Boundary output = Boundary::kStream;          ///< as it leaves
  /// A projection of attention whose both projections are replicated: where the stream is divided
  /// along samples, attention runs on the rank's own ones, and nothing travels.
  bool own_samples = false;

  Placement weight() const { return parameters.at("weight"); }
};

/// Checks a recipe, whose rules stand in front of the default ones, against a model and `tp` ranks,
/// and returns all modules of the model in the order in which they run. It needs neither the model
/// nor ranks, so that a job can be refused before either exists.
///
/// Each module type has a transfer function, from the placement of its weight to what it needs and
/// computes (Linear: replicate: stream to stream; shard(0): replicate to shard(-1); shard(1):
/// shard(-1) to partial). Then both ends of each edge of the data flow must agree: norm to qkv,
/// gate and up; qkv through attention to out; gate and up to down; every branch to the stream,
/// which is always divided. Throws Error(config) that names module, axis and rule, and says what to
/// write.
std::vector<PlacedModule> check_recipe(const Recipe& recipe, const model::ModelSpec& spec,
                                       std::int64_t tp);

}  // namespace shoal::parallel
