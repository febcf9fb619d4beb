#include "shoal/ops/grouped_linear.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <numeric>

#include "shoal/base/check.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/matmul.h"

namespace shoal::ops {
namespace {

/// Calls `each` with an expert, its first row and the number of its rows, for experts that have
/// some.
template <class Each>
void for_experts(const std::vector<std::int64_t>& counts, const Each& each) {
  std::int64_t begin = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) each(static_cast<std::int64_t>(e), begin, counts[e]);
    begin += counts[e];
  }
}

/// target [E, N, K] = dy^T x of each expert's rows.
void weight_gradient(const at::Tensor& target, bool accumulate,
                     const std::vector<std::int64_t>& counts, const at::Tensor& dy,
                     const at::Tensor& x) {
  for_experts(counts, [&](std::int64_t e, std::int64_t begin, std::int64_t rows) {
    matmul(target.select(0, e), dy.narrow(0, begin, rows).t(), x.narrow(0, begin, rows),
           accumulate);
  });
  if (accumulate) return;
  // What nobody wrote to holds values of an earlier step.
  for (std::size_t e = 0; e < counts.size(); ++e)
    if (counts[e] == 0) target.select(0, static_cast<std::int64_t>(e)).zero_();
}

}  // namespace

at::Tensor grouped_linear(const at::Tensor& input, const std::vector<std::int64_t>& counts,
                          const Weight& weight, const at::Tensor& known) {
  const at::Tensor& w = weight.tensor;
  SHOAL_USER_CHECK(w.dim() == 3 && input.dim() == 2 && input.size(1) == w.size(2), "grouped_linear",
                   "rows [{}, {}] times a weight of {} dimensions", input.dim() ? input.size(0) : 0,
                   input.dim() ? input.size(-1) : 0, w.dim());
  const std::int64_t rows = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  SHOAL_USER_CHECK(static_cast<std::int64_t>(counts.size()) == w.size(0) && rows == input.size(0),
                   "grouped_linear", "{} counts of {} rows for {} experts and {} rows",
                   counts.size(), rows, w.size(0), input.size(0));
  return differentiable("grouped_linear", {input, w}, [&](const Wanted& wanted) {
    const at::Tensor multiplied = factor(input.contiguous(), w.scalar_type());
    const at::Tensor out =
        known.defined() ? known.detach() : at::empty({rows, w.size(1)}, input.options());
    if (!known.defined()) {
      for_experts(counts, [&](std::int64_t e, std::int64_t begin, std::int64_t count) {
        matmul(out.narrow(0, begin, count), multiplied.narrow(0, begin, count), w.select(0, e).t());
      });
    }
    return Recorded{
        {out},
        {wanted.input[1] ? multiplied : at::Tensor(), wanted.input[0] ? w : at::Tensor()},
        [wanted, counts, sink = weight.sink, sizes = input.sizes().vec(), shape = w.sizes().vec(),
         type = w.scalar_type()](const Tensors& saved, const Tensors& gradients) {
          const at::Tensor dy = gradients[0].contiguous();
          const at::Tensor factor_dy = factor(dy, type);
          Tensors result(2);
          if (wanted.input[0]) {
            result[0] = at::empty(sizes, dy.options());
            for_experts(counts, [&](std::int64_t e, std::int64_t begin, std::int64_t count) {
              matmul(result[0].narrow(0, begin, count), factor_dy.narrow(0, begin, count),
                     saved[1].select(0, e));
            });
          }
          if (!wanted.input[1]) return result;
          // It holds both factors, because the sink may run it after backward has freed them.
          const auto write = [counts, factor_dy, x = saved[0]](const at::Tensor& target,
                                                               bool accumulate) {
            weight_gradient(target, accumulate, counts, factor_dy, x);
          };
          if (sink) {
            result[1] = deliver_later(sink, write);
          } else {
            result[1] = at::empty(shape, dy.options().dtype(type));
            write(result[1], false);
          }
          return result;
        }};
  })[0];
}

}  // namespace shoal::ops
