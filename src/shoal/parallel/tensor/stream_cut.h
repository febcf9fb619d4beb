#pragma once

#include "shoal/comm/group.h"
#include "shoal/nn/context.h"

namespace shoal::parallel {

/// Returns the rows of the residual stream [samples, columns, h] that rank `rank` of `ranks`
/// tensor-parallel ranks holds: samples where the ranks divide them, else columns (sequence
/// parallelism, Korthikanti et al., "Reducing activation recomputation in large transformer
/// models", 2022). Parts may be uneven. With one rank the stream is not divided.
nn::Stream cut_stream(std::int64_t samples, std::int64_t columns, int ranks, int rank);

/// Throws Error(usage) where gradients are recorded of a stream that is not divided: every rank
/// would compute the same, and it would be counted once a rank.
void check_divided(const nn::Stream& stream);

/// Returns the rows that all ranks of `group` hold of the stream, from this rank's x [b, t, h]; `x`
/// where the stream is not divided. Its gradient is summed into each rank's rows. Collective.
at::Tensor gather_stream(const at::Tensor& x, const comm::Group& group, const nn::Context& context);

/// Returns this rank's rows of the sum over the ranks of x [B, T, h]; the whole sum where the
/// stream is not divided. Collective unless `known` is defined, the result of an earlier call.
at::Tensor sum_into_stream(const at::Tensor& x, const comm::Group& group,
                           const nn::Context& context, const at::Tensor& known = {});

}  // namespace shoal::parallel
