#pragma once

#include <string>

#include "shoal/comm/group.h"
#include "shoal/nn/module.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/pipeline/pipeline.h"
#include "shoal/train/config/metrics.h"
#include "shoal/train/data_source.h"

namespace shoal::train {

struct EvaluationOptions {
  std::string split = "validation";
  std::int64_t samples = 0;      ///< samples, spread evenly over the split; 0: all of it
  std::int64_t micro_batch = 8;  ///< samples a rank runs at once
  /// All ranks run as many micro-batches, however many samples each has: they gather parameters
  /// together. Where experts are divided that is so in any case.
  bool in_step = false;
};

/// Runs `model` over samples of a split without gradients or dropout: this rank those of its
/// `share`. The sums are taken over `group`. Collective. The result does not depend on the number
/// of ranks beyond rounding.
/// `pipeline`: where the model's stages lie on several ranks; null: `model` is whole.
Evaluation evaluate(nn::Model& model, const DataSource& data, const comm::Group& group,
                    const parallel::BatchShare& share, const EvaluationOptions& options,
                    parallel::Pipeline* pipeline = nullptr);

/// Returns e.g. "loss 3.214, 1.873 bits per byte".
std::string describe(const Evaluation& evaluation);

}  // namespace shoal::train
