#pragma once

#include <memory>
#include <vector>

#include "shoal/mesh/mesh.h"
#include "shoal/nn/parameter.h"

namespace shoal::parallel {

using Parameters = std::vector<std::shared_ptr<nn::Parameter>>;

/// The ranks that hold the same box of a parameter: every axis of a pipeline stage along which it
/// is replicated, or kExpertData for experts that are divided. Its gradient is the sum over all of
/// them.
struct Holders {
  mesh::AxisSet axes;
  /// The axes over which flat units are cut: all of `axes` but dp_replicate.
  mesh::AxisSet cut;
  comm::Group shard;   ///< the ranks that differ along `cut`
  comm::Group copies;  ///< the ranks that differ along dp_replicate: each holds the same shard
};

/// Returns the ranks that hold the parameters of a model, as their layouts say; with no parameter,
/// the ranks of a stage. Throws Error(usage) that names the first parameter with other holders than
/// those before it, and Error(internal) when the mesh makes no group of these ranks.
Holders common_holders(const Parameters& parameters, const mesh::Mesh& mesh);

/// Parameters that have the same holders.
struct HeldParameters {
  Holders holders;
  Parameters parameters;
};

/// Groups parameters by their holders, which differ where a technique cuts some and replicates
/// others. Sets come in the order of their first parameter, the same on all ranks of a stage.
std::vector<HeldParameters> by_holders(const Parameters& parameters, const mesh::Mesh& mesh);

}  // namespace shoal::parallel
