#include "shoal/parallel/tensor/row_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "shoal/nn/replay.h"
#include "shoal/ops/linear.h"
#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {

RowLinear::RowLinear(const nn::Linear& original, comm::Group ranks)
    : Linear(nn::Replacement(), original), ranks_(std::move(ranks)) {}

at::Tensor RowLinear::onto(const at::Tensor& residual, const at::Tensor& x,
                           const nn::Context& context) const {
  const ops::Weight bias_weight = bias() ? bias()->weight() : ops::Weight();
  nn::Replay* replay = context.replay;
  if (replay != nullptr && replay->repeating()) {
    // Nothing is multiplied or sent again. Nobody reads the two results before the last, so they
    // have a shape and no values.
    const at::Tensor& known = replay->next();
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = known.size(-1);
    const at::Tensor part =
        ops::linear(x, weight()->weight(), {}, {}, at::empty(shape, known.options()));
    const at::Tensor sum = sum_into_stream(part, ranks_, context, at::empty_like(known));
    return ops::add_rows(sum, bias_weight, residual, known);
  }
  const at::Tensor part = ops::linear(x, weight()->weight());
  const at::Tensor sum = sum_into_stream(part, ranks_, context);
  // Behind the sum: on the parts, the bias would be counted once a rank.
  at::Tensor y = ops::add_rows(sum, bias_weight, residual);
  if (replay != nullptr) replay->keep(y);
  return y;
}

}  // namespace shoal::parallel
