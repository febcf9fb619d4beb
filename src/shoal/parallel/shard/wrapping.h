#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/module.h"

namespace shoal::parallel {

/// Chooses the modules that become sharding units. Parameters in none of them belong to the model
/// itself, which is a unit that stays gathered through the whole pass.
struct Wrapping {
  enum class By {
    /// Takes the units of the model: embedding, every block, head. In a module that is no Model it
    /// takes the children.
    kBlock,
    /// Takes, from the leaves up, every module with at least `parameters` elements that are in no
    /// unit yet.
    kSize,
    /// Takes modules whose path matches one of `names`, in which * stands for any text:
    /// "blocks.*.mlp".
    kName,
    /// Takes the model as one unit.
    kWhole,
  };
  By by = By::kBlock;
  std::int64_t parameters = 1'000'000;
  std::vector<std::string> names;
  /// Accepts names that fit nothing: in a stage of a pipeline, whose whole model was asked before.
  bool may_miss = false;
};

/// Describes a module that becomes a unit. `parameters` are those that no earlier unit has, so each
/// parameter of the model is in exactly one unit: a tied weight is in the first that registers it.
/// `borrowed` are parameters of other units that the module reads.
struct WrappedModule {
  nn::Module* module = nullptr;
  int parent = -1;  ///< index of the wrapped module around it
  std::vector<std::shared_ptr<nn::Parameter>> parameters;
  std::vector<std::shared_ptr<nn::Parameter>> borrowed;
};

/// Lists the units in the order in which forward enters them, outer before inner. Throws
/// Error(config) for a name that matches no module.
std::vector<WrappedModule> wrap(nn::Module& model, const Wrapping& wrapping);

}  // namespace shoal::parallel
