#include "shoal/parallel/tensor/row_linear.h"

#include "shoal/nn/replay.h"
#include "shoal/ops/linear.h"
#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {

RowLinear::RowLinear(const nn::Linear& original, comm::Group ranks)
    : Linear(nn::Replacement(), original), ranks_(std::move(ranks)) {}

at::Tensor RowLinear::onto(const at::Tensor& residual, const at::Tensor& x,
                           const nn::Context& context) const {
  const at::Tensor part = nn::product(context, x, weight()->weight());
  const at::Tensor sum = sum_into_stream(part, ranks_, context);
  // Behind the sum: on the parts, the bias would be counted once a rank.
  return ops::add_rows(sum, bias() ? bias()->weight() : ops::Weight(), residual);
}

}  // namespace shoal::parallel
