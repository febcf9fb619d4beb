#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/nn/module.h"

namespace shoal::parallel {

/// Which modules become sharding units. What lies in none of them belongs to the model itself, a
/// unit that is there through the whole pass.
struct Wrapping {
  enum class By {
    kBlock,  ///< the units of the model: embedding, every block, head; of a module that is no
             ///< model: its children
    kSize,  ///< from the leaves up, every module with at least `parameters` elements that are in no
            ///< unit yet
    kName,  ///< modules whose path is one of `names`, in which * stands for any text:
            ///< "blocks.*.mlp", or a list of whole paths
    kWhole,  ///< the model as one unit
  };
  By by = By::kBlock;
  std::int64_t parameters = 1'000'000;
  std::vector<std::string> names;
};

/// A module that becomes a unit, and its parameters that no module before it has taken: each
/// parameter of the model is in one of them. A tied weight belongs to the first that registers it;
/// `borrowed` are those which the module reads beside its own.
struct WrappedModule {
  nn::Module* module = nullptr;
  int parent = -1;  ///< index of the wrapped module around it
  std::vector<std::shared_ptr<nn::Parameter>> parameters;
  std::vector<std::shared_ptr<nn::Parameter>> borrowed;
};

/// Whether `path` is `pattern`, in which * stands for any text.
bool fits(std::string_view pattern, std::string_view path);

/// In the order in which forward meets them, outer before inner. Throws Error(config) for a name
/// that fits no module.
std::vector<WrappedModule> wrap(nn::Module& model, const Wrapping& wrapping);

}  // namespace shoal::parallel
