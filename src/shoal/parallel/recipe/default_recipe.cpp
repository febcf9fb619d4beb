#include "shoal/parallel/recipe/default_recipe.h"

namespace shoal::parallel {

Recipe default_recipe() {
  const Placement rows = Placement::shard(0);
  const Placement columns = Placement::shard(1);
  const Placement all = Placement::replicate();
  // Cut rows give each rank its own features, which cut columns read: nothing travels between them.
  return {
      {"embedding.tokens", {{"weight", rows}}, {}, {}},
      {"*.attention.qkv", {{"weight", rows}}, {}, {}},
      {"*.attention.out", {{"weight", columns}}, {}, {}},
      {"*.mlp.gate", {{"weight", rows}}, {}, {}},
      {"*.mlp.up", {{"weight", rows}}, {}, {}},
      {"*.mlp.down", {{"weight", columns}}, {}, {}},
      {"head.output", {{"weight", rows}}, {}, {}},
      {"*", {{"weight", all}}, {}, {}},
  };
}

}  // namespace shoal::parallel
