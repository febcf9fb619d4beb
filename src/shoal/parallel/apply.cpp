#include "shoal/parallel/apply.h"

#include <utility>

#include "shoal/parallel/activation_checkpoint.h"
#include "shoal/parallel/context/context_parallel.h"
#include "shoal/parallel/expert/expert_parallel.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// Each line needs what those before it did, and would break if it came earlier:
//   modules are replaced first, since hooks and functions around the old ones would be lost;
//   blocks are recomputed as they are then, counted over the whole model;
//   stages drop the units of other ranks before anything has memory, and with it a type.
Applied apply(nn::Model& model, const mesh::Mesh& mesh, const ApplyOptions& options) {
  split_tensors(model, mesh, options.recipe);
  place_experts(model, mesh);
  split_sequence(model, mesh, options.context_method);
  if (options.set_types) options.set_types(model);
  for (const auto& parameter : model.parameters()) parameter->set_device(options.device);
  if (!options.kept.empty()) checkpoint_activations(model, options.kept);
  Applied applied;
  if (options.table.ranks() > 0) {
    // Names of units must exist in the model, and need not in every stage.
    if (options.sharding) wrap(model, options.sharding->wrapping);
    const comm::Group& pipeline = mesh.along(mesh::Axis::kPipeline);
    applied.stages = cut_stages(model, options.table, options.units_of_stage, pipeline.rank());
    applied.tied.emplace(applied.stages, pipeline);
  }
  if (options.sharding) {
    ShardingOptions sharded = *options.sharding;
    sharded.wrapping.may_miss = options.table.ranks() > 0;
    // Both stages cut a tied weight in the same way, so that each rank sums its own shard.
    for (const TiedWeight& weight : applied.stages.tied)
      if (weight.parameter) sharded.alone.push_back(weight.parameter);
    auto sharding = sharded_data_parallel(model, mesh, sharded);
    applied.sharding = sharding.get();
    applied.reduction = std::move(sharding);
  } else {
    model.materialize();
  }
  return applied;
}

void reduce_gradients(Applied& applied, nn::Model& model, const mesh::Mesh& mesh,
                      const DataParallelOptions& options) {
  if (!applied.reduction) applied.reduction = data_parallel_on(model, mesh, options);
}

void Applied::reset_parameters(nn::Model& model, Key key) const {
  if (sharding != nullptr) {
    sharding->reset_parameters(key);
  } else {
    model.reset_parameters(key);
  }
}

std::vector<OwnedRange> Applied::owned(const nn::Model& model, const mesh::Mesh& mesh) const {
  auto ranges = sharding != nullptr ? sharding->owned() : whole_ranges(model, mesh);
  return tied ? tied->mark(std::move(ranges)) : ranges;
}

}  // namespace shoal::parallel
