#pragma once

#include <functional>
#include <vector>

#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/pipeline/cut_stages.h"
#include "shoal/parallel/pipeline/pipeline.h"
#include "shoal/parallel/shard/sharding.h"

namespace shoal::parallel {

/// Returns the events of a pipeline with `stages` on this rank whose gradients `reduction` sums: it
/// sends what becomes ready in the last use of the last of them. `loss` is called with the loss of
/// a micro-batch before its gradient. `sharding`, where it is not null, gathers and releases stages
/// as the table says. All must outlive the pipeline.
PipelineEvents pipeline_events(GradientReduction& reduction, const std::vector<Stage>& stages,
                               std::function<void(int micro_batch, double loss)> loss = {},
                               Sharding* sharding = nullptr);

/// Returns the events of a table in which the whole model runs one micro-batch after the other:
/// `reduction` learns of each before its forward pass, and may reduce after every one. `action`,
/// where it is not empty, is called before that.
PipelineEvents events_in_turn(GradientReduction& reduction, int micro_batches,
                              std::function<void(int micro_batch, double loss)> loss,
                              std::function<void(const schedule::Action&)> action = {});

}  // namespace shoal::parallel
