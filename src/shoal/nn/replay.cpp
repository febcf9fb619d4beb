#include "shoal/nn/replay.h"

#include "shoal/base/check.h"
#include "shoal/ops/grouped_linear.h"
#include "shoal/ops/linear.h"

namespace shoal::nn {

const at::Tensor& Replay::next() {
  SHOAL_CHECK(next_ < kept_.size(),
              "a recomputed pass makes more matrix products than the {} of the first pass",
              kept_.size());
  return kept_[next_++];
}

at::Tensor product(const Context& context, const at::Tensor& x, const ops::Weight& weight,
                   const ops::Weight& bias, const at::Tensor& residual) {
  Replay* replay = context.replay;
  // The second pass makes the same calls in the same order, so results need no names. The call
  // still records its node: backward is what the pass is for.
  if (replay && replay->repeating()) return ops::linear(x, weight, bias, residual, replay->next());
  at::Tensor y = ops::linear(x, weight, bias, residual);
  if (replay) replay->keep(y);
  return y;
}

at::Tensor grouped_product(const Context& context, const at::Tensor& x,
                           const std::vector<std::int64_t>& counts, const ops::Weight& weight) {
  Replay* replay = context.replay;
  if (replay && replay->repeating()) return ops::grouped_linear(x, counts, weight, replay->next());
  at::Tensor y = ops::grouped_linear(x, counts, weight);
  if (replay) replay->keep(y);
  return y;
}

}  // namespace shoal::nn
