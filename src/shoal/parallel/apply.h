#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/mesh/mesh.h"
#include "shoal/model/kept_activations.h"
#include "shoal/nn/module.h"
#include "shoal/parallel/context/sequence_cut.h"
#include "shoal/parallel/pipeline/cut_stages.h"
#include "shoal/parallel/pipeline/tied_weights.h"
#include "shoal/parallel/recipe/rule.h"
#include "shoal/parallel/shard/sharding.h"
#include "shoal/schedule/action.h"

namespace shoal::parallel {

/// Options of `apply`, beside the degrees of the mesh.
struct ApplyOptions {
  Recipe recipe;  ///< rules in front of default_recipe(), for the axis tp
  ContextMethod context_method = ContextMethod::kRing;  ///< how ranks along cp compute attention
  at::Device device = at::kCPU;                         ///< where parameters will lie
  /// Is called while parameters are on the meta device, where their types can be chosen; empty:
  /// they keep theirs.
  std::function<void(nn::Model&)> set_types;
  /// The activations that each block keeps for its backward pass (model::kept_by_block); empty:
  /// everything.
  std::vector<model::Keep> kept;
  schedule::Schedule table;                  ///< of a pipeline; without ranks: the model is whole
  std::vector<std::int64_t> units_of_stage;  ///< of the table's stages
  /// Shards state over data ranks; empty: every rank has its parameters whole, and
  /// `reduce_gradients` must be called.
  std::optional<ShardingOptions> sharding;
};

/// The techniques of a model on a mesh, as one rank has them.
struct Applied {
  Stages stages;                    ///< of this rank; none without a pipeline
  std::optional<TiedWeights> tied;  ///< present with a pipeline
  /// Sums the gradients. Without sharding reduce_gradients makes it.
  std::unique_ptr<GradientReduction> reduction;
  Sharding* sharding = nullptr;  ///< `reduction` where state is sharded

  /// Fills the parameters as Module::reset_parameters does. Collective.
  void reset_parameters(nn::Model& model, Key key) const;
  /// Returns the parts of parameters that this rank updates and saves.
  std::vector<OwnedRange> owned(const nn::Model& model, const mesh::Mesh& mesh) const;
};

/// Divides a model on the meta device among the ranks of a mesh, by every technique that the mesh
/// and the options ask for, in the only order in which they fit together, and gives it memory.
/// Values are undefined until `reset_parameters`, or until the owned ranges are filled.
///
/// Collective. Throws Error(config) that names module, axis and rule for what does not divide,
/// before any memory is taken, alike on all ranks; Error(usage) for a model that has memory.
Applied apply(nn::Model& model, const mesh::Mesh& mesh, const ApplyOptions& options = {});

/// Makes `applied.reduction` where nothing is sharded: data parallelism, whose ranks compare the
/// values from which they start. So parameters must have theirs. Collective.
void reduce_gradients(Applied& applied, nn::Model& model, const mesh::Mesh& mesh,
                      const DataParallelOptions& options = {});

}  // namespace shoal::parallel
