#pragma once

#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// Returns the workspace of a matmul that packs its operands: ops/gemm_kernels.cpp, blocks of 1536
/// rows, 320 columns, 512 deep.
double packed_operands(double rows, double columns, double depth);

/// Returns the bytes that the backward pass of a block's attention takes at its worst moment,
/// beside what the block keeps: gradients of its result and of queries, keys and values, the scores
/// of some rows of queries, and with context parallelism the blocks of keys and values that travel
/// (ring), or the buffers in which heads are exchanged. `threads` compute on the rank. `in_place`:
/// the ring's ranks share memory, and read keys and values where they lie.
double attention_backward(const ModelSpec& spec, const MicroBatch& batch, std::int64_t threads,
                          bool in_place);

}  // namespace shoal::forecast
