#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/nn/module.h"
#include "shoal/schedule/action.h"

namespace shoal::parallel {

/// Consecutive units of a model, which one rank computes one after the other.
struct Stage {
  int number = 0;  ///< along the data path, over all ranks
  std::vector<std::shared_ptr<nn::Module>> units;

  /// Lists each parameter of the units once.
  std::vector<std::shared_ptr<nn::Parameter>> parameters() const;
};

/// A weight that stages of several ranks use; each of these ranks has a copy of its own.
struct TiedWeight {
  std::shared_ptr<nn::Parameter> parameter;  ///< null on a rank that does not use it
  std::vector<int> ranks;                    ///< in the order of their first stages that use it
};

/// The part of a model that one rank of a pipeline holds.
struct Stages {
  std::vector<Stage> local;         ///< ascending by number
  std::vector<TiedWeight> tied;     ///< the same list on every rank
  std::vector<std::int64_t> width;  ///< by stage: the last dimension of its input; of all stages
  /// The first unit looks up tokens: it adds a dimension.
  bool of_tokens = true;

  /// Returns the shape of the input of stage `stage` > 0, for a micro-batch whose tokens [B, T] or
  /// features [B, inputs] are `input`, of which this rank has the rows `stream`: both ends of a
  /// message know it.
  std::vector<std::int64_t> input_shape(int stage, const at::Tensor& input,
                                        const nn::Stream& stream = {}) const;
};

/// Cuts `model` into the stages of `table`, stage s having `units_of_stage[s]` units (see
/// stage_sizes.h), and drops from it what ranks other than `rank` hold: afterwards
/// model.parameters() are this rank's, under the names of the whole model, and materialize() takes
/// memory for these alone. Their initial values are those of the whole model, bit for bit.
///
/// Must be called after checkpoint_activations, which needs the whole list of units. Throws
/// Error(usage) for sizes that do not divide the units, and when the model has memory already.
Stages cut_stages(nn::Model& model, const schedule::Schedule& table,
                  const std::vector<std::int64_t>& units_of_stage, int rank);

/// Returns the only stage of a table of one rank: its one unit is the model itself, so that hooks
/// on it (a sharding unit that holds what no other has) run too. It does not own the model.
Stages whole_model(nn::Model& model);

}  // namespace shoal::parallel
