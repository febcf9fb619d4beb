#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/comm/group.h"
#include "shoal/nn/context.h"
#include "shoal/parallel/pipeline/cut_stages.h"
#include "shoal/parallel/shard/sharding.h"
#include "shoal/schedule/action.h"

namespace shoal::parallel {

/// Runs `input` through the stages of all ranks, one after the other, without recording gradients,
/// and returns the output of the last stage on every rank: what generation needs. `outputs` is the
/// last dimension of that output, float32; the context has no labels. `group`: the ranks of the
/// pipeline, `table` and `stages` as for Pipeline. `sharding`, where it is not null, gathers each
/// stage for its pass, with the ranks that hold shards of it. Collective over all of these.
at::Tensor forward_through(const Stages& stages, const schedule::Schedule& table,
                           const comm::Group& group, const at::Tensor& input,
                           const nn::Context& context, std::int64_t outputs,
                           Sharding* sharding = nullptr);

}  // namespace shoal::parallel
