#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/comm/group.h"
#include "shoal/mesh/move.h"

namespace shoal::parallel {

/// Brings a tensor from one placement along an axis to another. `x` is this rank's tensor, `group`
/// the ranks along the axis in their order, `whole` the shape that the tensor has before the axis
/// cuts it. Returns this rank's tensor in the placement `to`: a fresh, contiguous tensor, or `x`
/// where nothing moves.
///
/// Each move is one collective, and no other sends fewer bytes where all parts are equal
/// (mesh::elements_sent counts them). Otherwise a gather and a reduce-scatter pad each part to the
/// largest one and send the padding too; from a shard to another shard only the elements that
/// change their rank travel. Ranks that share memory send none of these: each copies them from
/// where they lie.
///
/// It is one autograd function. Its backward pass is the move from dual(to) to dual(from): a gather
/// is answered by a reduce-scatter, an all-reduce by an all-reduce, a slice by zeros around it. It
/// runs on every rank, also on one whose gradient is undefined, so that ranks stay together.
///
/// `known`, when defined, is the result of an earlier call with the same arguments: nothing moves
/// then, and only the backward pass is prepared.
///
/// Collective over `group`. Throws Error(usage) when `x` has not the shape of this rank's part, and
/// as mesh::move_between.
at::Tensor redistribute(const at::Tensor& x, const comm::Group& group, const mesh::Placement& from,
                        const mesh::Placement& to, at::IntArrayRef whole,
                        const at::Tensor& known = {});

}  // namespace shoal::parallel
