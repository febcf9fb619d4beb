#include "shoal/parallel/tensor/row_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "shoal/nn/replay.h"
#include "shoal/ops/linear.h"
#include "shoal/parallel/tensor/overlapped_products.h"
#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {

RowLinear::RowLinear(const nn::Linear& original, comm::Group ranks, std::optional<RowLinks> links)
    : Linear(nn::Replacement(), original), ranks_(std::move(ranks)), links_(std::move(links)) {}

at::Tensor RowLinear::summed(const at::Tensor& x, const nn::Context& context,
                             const at::Tensor& known) const {
  const ops::Weight own = weight()->weight();
  if (links_ && parts_in_order(context.stream, x.size(0), ranks_.size()))
    return summed_product(x, own, *links_, context.stream, known);
  at::Tensor part;
  if (known.defined()) {
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = known.size(-1);
    part = at::empty(shape, known.options());
  }
  return sum_into_stream(ops::linear(x, own, {}, {}, part), ranks_, context, known);
}

at::Tensor RowLinear::onto(const at::Tensor& residual, const at::Tensor& x,
                           const nn::Context& context) const {
  const ops::Weight bias_weight = bias() ? bias()->weight() : ops::Weight();
  nn::Replay* replay = context.replay;
  if (replay != nullptr && replay->repeating()) {
    // Nothing is multiplied or sent again. Nobody reads what comes before the last result, so it
    // has a shape and no values.
    const at::Tensor& known = replay->next();
    const at::Tensor sum = summed(x, context, at::empty_like(known));
    return ops::add_rows(sum, bias_weight, residual, known);
  }
  // Behind the sum: on the parts, the bias would be counted once a rank.
  at::Tensor y = ops::add_rows(summed(x, context), bias_weight, residual);
  if (replay != nullptr) replay->keep(y);
  return y;
}

}  // namespace shoal::parallel
