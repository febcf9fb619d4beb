#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shoal/nn/stream.h"
#include "shoal/ops/gradient_sink.h"
#include "shoal/parallel/tensor/row_messages.h"

namespace shoal::parallel {

/// Returns true when the products below can be taken: the parts of the stream that the ranks hold
/// are equal, and lie one behind the other in a tensor of `samples` samples.
bool parts_in_order(const nn::Stream& stream, std::int64_t samples, int ranks);

/// A weight [out, in] and a bias [out], which may be undefined.
struct Layer {
  ops::Weight weight;
  ops::Weight bias;
};

/// Returns all rows of the stream, from this rank's x [b, t, in], times the weights of `layers`,
/// plus their biases: [B, T, out] each. Over slow links the product of this rank's rows runs while
/// those of the others arrive. In backward the gradient of x travels while weight gradients are
/// computed.
///
/// It has the bits of gather_stream and ops::linear: products of fp32 and 16-bit weights do not
/// depend on how rows are cut, and a weight gradient is one product over all rows. `known`, when
/// not empty, has the results of an earlier call: only the rows are gathered then, for backward.
/// Weights have one type. Collective.
std::vector<at::Tensor> gathered_products(const at::Tensor& x, const std::vector<Layer>& layers,
                                          const RowLinks& links, const nn::Stream& stream,
                                          const std::vector<at::Tensor>& known = {});

/// Returns this rank's rows [b, t, out] of the sum over the ranks of x [B, T, in] times `weight`
/// [out, in]. Over slow links the rows of others are multiplied first, and sent while the next are;
/// in backward the gradient of this rank's rows is multiplied while that of the others arrives.
///
/// It has the bits of ops::linear and sum_into_stream where these add in the order of ranks, as in
/// shared memory, and always between two ranks. `known` is the result of an earlier call: nothing
/// is multiplied or sent then, and only backward is prepared. Collective.
at::Tensor summed_product(const at::Tensor& x, const ops::Weight& weight, const RowLinks& links,
                          const nn::Stream& stream, const at::Tensor& known = {});

/// Returns true when `rows` [n, width], sent to every other rank, take so long that products of
/// weights with `elements` elements in all are worth cutting: each part packs the weights anew.
bool worth_cutting(const RowLinks& links, const at::Tensor& rows, std::int64_t elements);

}  // namespace shoal::parallel
