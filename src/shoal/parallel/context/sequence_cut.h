#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "shoal/mesh/layout.h"
#include "shoal/nn/context.h"

namespace shoal::parallel {

/// How context-parallel ranks compute attention, for which each has queries, keys and values of its
/// own columns only.
enum class ContextMethod {
  kRing,   ///< keys and values travel from rank to rank (RingAttention)
  kHeads,  ///< each rank gets whole sequences of some heads (HeadExchange)
};

/// Returns how a way cuts sequences: zigzag for kRing, where a rank's work grows with the positions
/// of its queries, and even for kHeads, where all heads cost the same.
mesh::Placement::Cut cut_of(ContextMethod way);

/// Returns the columns of a sequence of `columns` tokens that rank `rank` of `ranks` holds, [n]
/// int64, ascending: part `rank` of `ranks` even parts, or with zigzag the parts `rank` and 2 ranks
/// - 1 - `rank` of 2 ranks. Parts differ by one column at most, the earlier ones being larger.
/// Throws Error(config) when a rank would have no column.
at::Tensor columns_of(std::int64_t columns, mesh::Placement::Cut cut, int ranks, int rank);

/// Cuts a micro-batch, inputs [B, T] and in `context` labels [B, T] and documents [B or 1, T], to
/// the columns of rank `rank` of `ranks`: all by one index. Sets `context.positions` and
/// `context.sequence`, by which attention finds what the others hold. Returns the inputs of this
/// rank. Does nothing with one rank. Throws Error(config) as columns_of, Error(usage) for shapes
/// that do not fit, and Error(data) where a document comes back after another one.
at::Tensor cut_sequence(const at::Tensor& inputs, nn::Context& context, mesh::Placement::Cut cut,
                        int ranks, int rank);

}  // namespace shoal::parallel
