#include "shoal/ops/linear.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "shoal/base/check.h"
#include "shoal/ops/activation_kernels.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/kernel_input.h"
#include "shoal/ops/matmul.h"

namespace shoal::ops {
namespace {

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// out [rows, N] = residual + bias: what the product is added to.
void fill(const at::Tensor& out, const at::Tensor& residual, const at::Tensor& bias) {
  if (is_fp32_on_cpu(out)) {
    const at::Tensor from = residual.defined() ? residual.contiguous() : residual;
    kernels::fill_rows(out.size(0), out.size(1), pointer(from), pointer(bias),
                       out.mutable_data_ptr<float>());
    return;
  }
  residual.defined() ? out.copy_(rows_of(residual)) : out.zero_();
  if (bias.defined()) out.add_(bias);
}

void add_columns(const at::Tensor& x, const at::Tensor& target, bool accumulate) {
  if (!accumulate) target.zero_();
  if (is_fp32_on_cpu(x)) {
    kernels::column_sum(x.size(0), x.size(1), pointer(x), target.mutable_data_ptr<float>());
  } else {
    target.add_(x.sum(0));
  }
}

}  // namespace

at::Tensor linear(const at::Tensor& input, const Weight& weight, const Weight& bias,
                  const at::Tensor& residual, const at::Tensor& known) {
  const at::Tensor& w = weight.tensor;
  SHOAL_USER_CHECK(w.dim() == 2 && input.dim() >= 1 && input.size(-1) == w.size(1), "linear",
                   "input [..., {}] times weight [{}, {}]", input.dim() ? input.size(-1) : 0,
                   w.size(0), w.dim() > 1 ? w.size(1) : 0);
  return differentiable("linear", {input, w, bias.tensor, residual}, [&](const Wanted& wanted) {
    const at::Tensor x = input.contiguous();
    auto shape = input.sizes().vec();
    shape.back() = w.size(0);
    SHOAL_CHECK(!known.defined() || known.sizes() == shape, "the known result has {} elements",
                known.numel());
    // What is kept for backward has 16 bits where the weight has.
    const at::Tensor multiplied = factor(x, w.scalar_type());
    // detach() makes a tensor of its own over the same memory, which this call's node can own as
    // output.
    const at::Tensor out = known.defined() ? known.detach() : at::empty(shape, x.options());
    if (!known.defined()) {
      const at::Tensor rows = rows_of(out);
      const bool onto = bias.defined() || residual.defined();
      // The product adds to what is there: bias and residual cost one write of the output instead
      // of a pass each.
      if (onto) fill(rows, residual, summand(bias.tensor, x));
      matmul(rows, rows_of(multiplied), w.t(), onto);
    }
    return Recorded{
        {out},
        // dW needs x, dx needs W: what nobody asks for is not kept. The first layer, whose input
        // needs no gradient, keeps no weight; a frozen layer keeps no input.
        {wanted.input[1] ? multiplied : at::Tensor(), wanted.input[0] ? w : at::Tensor(),
         wanted.input[2] ? bias.tensor : at::Tensor()},
        [wanted, sizes = input.sizes().vec(), weight_sink = weight.sink, bias_sink = bias.sink,
         shape_of_weight = w.sizes().vec(),
         type = w.scalar_type()](const Tensors& saved, const Tensors& gradients) {
          // dx = dy W, dW = dy^T x, db = column sums of dy, and the residual's gradient is dy
          // itself.
          const at::Tensor dy = rows_of(gradients[0]).contiguous();
          const at::Tensor factor_dy = factor(dy, type);
          Tensors result(4);
          if (wanted.input[0]) {
            result[0] = at::empty(sizes, dy.options());
            matmul(rows_of(result[0]), factor_dy, saved[1]);
          }
          if (wanted.input[1]) {
            // It holds both factors, because the sink may run it after backward has freed them.
            const auto write = [factor_dy, x = rows_of(saved[0])](const at::Tensor& target,
                                                                  bool accumulate) {
              matmul(target, factor_dy.t(), x, accumulate);
            };
            // The shape comes from the sink: a weight that backward does not keep cannot be asked.
            if (weight_sink) {
              // The product goes straight into the sink (a bucket, or the gradient itself),
              // overwriting or adding: no temporary of the weight's size.
              result[1] = deliver_later(weight_sink, write);
            } else {
              result[1] = at::empty(shape_of_weight, dy.options().dtype(type));
              write(result[1], false);
            }
          }
          if (wanted.input[2]) {
            result[2] = bias_gradient(bias_sink, saved[2], dy);
          }
          if (wanted.input[3]) result[3] = gradients[0];
          return result;
        }};
  })[0];
}

at::Tensor add_rows(const at::Tensor& x, const Weight& bias, const at::Tensor& residual,
                    const at::Tensor& known) {
  return differentiable("add_rows", {x, bias.tensor, residual}, [&](const Wanted& wanted) {
    const at::Tensor out = known.defined() ? known.detach() : at::empty(x.sizes(), x.options());
    if (!known.defined()) {
      fill(rows_of(out), residual, summand(bias.tensor, x));
      out.add_(x);
    }
    return Recorded{{out},
                    {wanted.input[1] ? bias.tensor : at::Tensor()},
                    [wanted, sink = bias.sink](const Tensors& saved, const Tensors& gradients) {
                      const at::Tensor& dy = gradients[0];
                      Tensors result{dy, {}, wanted.input[2] ? dy : at::Tensor()};
                      if (wanted.input[1])
                        result[1] = bias_gradient(sink, saved[0], rows_of(dy).contiguous());
                      return result;
                    }};
  })[0];
}

at::Tensor bias_gradient(const std::shared_ptr<GradientSink>& sink, const at::Tensor& bias,
                         const at::Tensor& dy) {
  return deliver(sink, bias, [&](const at::Tensor& target, bool accumulate) {
    write_widened(target, accumulate,
                  [&](const at::Tensor& sum, bool onto) { add_columns(dy, sum, onto); });
  });
}

}  // namespace shoal::ops
