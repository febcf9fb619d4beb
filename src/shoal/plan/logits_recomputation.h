#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/plan/training.h"
#include "shoal/schedule/action.h"

namespace shoal::plan {

/// Rows whose logits the head computes at once (ops::LossBlocks).
inline constexpr std::int64_t kLossRows = 1024;

/// Returns the rows of a micro-batch of which the rank that has most computes logits: all of its
/// columns, or, where tensor-parallel ranks hold the whole output layer each, its part of them.
std::int64_t head_rows(const ModelSpec& spec, const Training& training);

/// The products of the head in the passes of a micro-batch, in units of one of them: logits, the
/// gradient of the input, and that of the weight.
struct HeadProducts {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
};

/// Returns the products of a head with so many rows. Beyond kLossRows rows its gradients are
/// finished in forward, or, with `recompute_logits`, that of its weight is left to the time of
/// weight gradients, with a second product for the logits.
HeadProducts head_products(std::int64_t rows, bool recompute_logits);

/// Returns true where the head of a pipeline should compute its logits twice (ops::LossBlocks). It
/// has then more than kLossRows rows of a micro-batch, and either
/// - the table keeps several micro-batches at once between the head's forward and backward pass:
///   each would keep a gradient as large as the head's matrix; or
/// - the table puts weight gradients off, and takes less time with two of the head's products among
///   them, in a simulation by the FLOPs of the units (messages and recomputed blocks take none).
/// A table that gathers parameters and puts weight gradients off may have released the head's
/// matrix by then: false. All ranks get the same answer.
bool recomputes_logits(const ModelSpec& spec, const Training& training,
                       const schedule::Schedule& table,
                       const std::vector<std::int64_t>& units_of_stage);
/// Returns Training::recompute_logits, or if that is empty the answer for the table and the stages
/// of the job; false without a pipeline. Makes the table, and simulates it twice where it puts
/// weight gradients off. Throws Error(usage) for a schedule that does not exist for these numbers
/// of ranks and micro-batches.
bool recomputes_logits(const ModelSpec& spec, const Training& training);

/// Returns the units of each stage: stage_blocks, with the embedding and the head.
std::vector<std::int64_t> stage_units(const ModelSpec& spec, const Training& training);

/// Says for people what `recompute` of recomputes_logits means for the job; empty without a
/// pipeline, and with no more than kLossRows rows, where nothing is chosen.
std::string describe_head(const ModelSpec& spec, const Training& training, bool recompute);

/// Returns the table of the job's pipeline: that of a file, or of the schedule with that name.
/// Throws Error(usage) for a number of micro-batches that the schedule does not have.
schedule::Schedule computation_table(const Training& training);
/// Returns that table with the gathers of ZeRO-3.
schedule::Schedule pipeline_table(const Training& training);

}  // namespace shoal::plan
