#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/matmul.h"
#include "shoal/ops/softmax_kernels.h"

namespace shoal::ops {
namespace {

/// The plain path, any floating type: logits become their gradient.
double plain_rows(const at::Tensor& logits, const std::int64_t* label, double scale,
                  bool gradient) {
  // loss = -log p[label], and d loss / d logits = p - onehot.
  const at::Tensor log_probability = at::_log_softmax(logits, -1, false);
  if (gradient) logits.copy_(log_probability.exp().mul_(scale));
  double loss = 0;
  for (std::int64_t row = 0; row < logits.size(0); ++row) {
    if (label[row] == kIgnoredLabel) {
      if (gradient) logits[row].zero_();
      continue;
    }
    loss -= log_probability[row][label[row]].item<double>();
    if (gradient) logits[row][label[row]].sub_(scale);
  }
  return loss;
}

/// The summed loss of contiguous `logits` [rows, V], which become their gradient times `scale` when
/// `gradient`.
double entropy_rows(const at::Tensor& logits, const std::int64_t* label, double scale,
                    bool gradient) {
  if (logits.scalar_type() != at::kFloat || !logits.device().is_cpu())
    return plain_rows(logits, label, scale, gradient);
  float* row = logits.mutable_data_ptr<float>();
  const std::int64_t width = logits.size(1);
  // In double: thousands of terms of about 10 would lose the last digits of a float.
  double loss = 0;
  for (std::int64_t i = 0; i < logits.size(0); ++i, row += width) {
    if (label[i] != kIgnoredLabel) {
      loss += kernels::cross_entropy_row(width, row, label[i], static_cast<float>(scale), gradient);
    } else if (gradient) {
      std::fill(row, row + width, 0.0f);
    }
  }
  return loss;
}

at::Tensor scalar(double value, const at::Tensor& like) {
  return at::full({}, value, like.options().requires_grad(false));
}

at::Tensor times(const at::Tensor& tensor, double factor) {
  return factor == 1 ? tensor : tensor * factor;
}

/// dx and dW from the gradient of the logits of all rows, in backward. `x` as it was multiplied;
/// the gradient of the input is of type `input`.
Recorded recorded_at_once(const at::Tensor& x, const Weight& weight, const at::Tensor& gradient,
                          at::Tensor loss, const Wanted& wanted, at::ScalarType input) {
  const at::Tensor factor_g = factor(gradient, weight.tensor.scalar_type());
  return {{std::move(loss)},
          {x, weight.tensor, factor_g},
          [wanted, sink = weight.sink, input](const Tensors& saved, const Tensors& upstream) {
            const at::Tensor x = saved[0].reshape({-1, saved[0].size(-1)});
            const at::Tensor& w = saved[1];
            // The gradient of the loss is a number, 1 unless somebody scales it (fp16's loss
            // scale): in general nothing is multiplied.
            const at::Tensor g = times(saved[2], upstream[0].item<double>());
            Tensors result(2);
            if (wanted.input[0]) {
              result[0] = at::empty(saved[0].sizes(), x.options().dtype(input));
              matmul(result[0].view({-1, w.size(1)}), g, w);
            }
            // It holds both factors, because the sink may run it after backward has freed them.
            const auto write = [g, x](const at::Tensor& target, bool accumulate) {
              matmul(target, g.t(), x, accumulate);
            };
            if (wanted.input[1])
              result[1] = sink ? deliver_later(sink, write) : deliver(sink, w, write);
            return result;
          }};
}

/// Block by block, with dx and dW finished here.
Recorded recorded_by_blocks(const at::Tensor& input, const Weight& weight, const RowLoss& row_loss,
                            double scale, std::int64_t block_rows, const Wanted& wanted) {
  const at::Tensor x = input.view({-1, input.size(-1)});
  const at::Tensor& w = weight.tensor;
  const at::Tensor multiplied = factor(x, w.scalar_type());
  const std::int64_t rows = x.size(0);
  // One block of logits, used again and again: at a vocabulary of 50,000 and 1,024 rows that is 200
  // MB. All rows of a batch would be that many times more.
  const at::Tensor logits = at::empty({std::min(rows, block_rows), w.size(0)}, x.options());
  const at::Tensor dx =
      wanted.any && wanted.input[0] ? at::empty(input.sizes(), x.options()) : at::Tensor();
  const at::Tensor dw =
      wanted.any && wanted.input[1] ? at::empty(w.sizes(), x.options()) : at::Tensor();
  double loss = 0;
  for (std::int64_t begin = 0; begin < rows; begin += block_rows) {
    const std::int64_t count = std::min(block_rows, rows - begin);
    const at::Tensor block = logits.narrow(0, 0, count);
    const at::Tensor part = multiplied.narrow(0, begin, count);
    matmul(block, part, w.t());
    loss += row_loss(block, begin, wanted.any);
    if (!wanted.any) continue;
    // The block holds softmax - onehot by now. Its part of dx and dW is finished before the next
    // block overwrites it.
    const at::Tensor g = factor(block, w.scalar_type());
    if (dx.defined()) matmul(dx.view({rows, -1}).narrow(0, begin, count), g, w);
    // Blocks add up in order; the first one overwrites.
    if (dw.defined()) matmul(dw, g.t(), part, begin > 0);
  }
  // The gradients are finished. Backward only hands them on, times the gradient of the loss.
  return {{scalar(loss * scale, x)},
          {dx, dw},
          [sink = weight.sink](const Tensors& saved, const Tensors& upstream) {
            const at::Tensor& dx = saved[0];
            const at::Tensor& dw = saved[1];
            const double factor = upstream[0].item<double>();
            Tensors result{dx.defined() ? times(dx, factor) : dx, {}};
            if (dw.defined() && sink) {
              result[1] = deliver(sink, dw, [&](const at::Tensor& target, bool accumulate) {
                accumulate ? target.add_(dw, factor) : target.copy_(times(dw, factor));
              });
            } else if (dw.defined()) {
              result[1] = times(dw, factor);
            }
            return result;
          }};
}

}  // namespace

void check_labels(const at::Tensor& labels, std::int64_t rows, std::int64_t classes) {
  SHOAL_USER_CHECK(labels.scalar_type() == at::kLong && labels.numel() == rows, "cross_entropy",
                   "{} int64 labels wanted, {} given", rows, labels.numel());
  const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows; ++i) {
    // A label outside the row would be read from foreign memory below.
    if (label[i] != kIgnoredLabel && (label[i] < 0 || label[i] >= classes)) {
      throw Error(
          ErrorKind::kData, "cross_entropy",
          fmt::format("label {} at element {}: there are {} classes", label[i], i, classes));
    }
  }
}

at::Tensor linear_loss(const at::Tensor& input, const Weight& weight, double scale,
                       const RowLoss& row_loss, std::int64_t block_rows) {
  const at::Tensor& w = weight.tensor;
  SHOAL_USER_CHECK(w.dim() == 2 && input.dim() >= 1 && input.size(-1) == w.size(1), "linear_loss",
                   "input [..., {}], weight of {} elements", input.dim() ? input.size(-1) : 0,
                   w.numel());
  SHOAL_USER_CHECK(block_rows > 0, "linear_loss", "block_rows {}", block_rows);
  return differentiable("linear_loss", {input, w}, [&](const Wanted& wanted) {
    const at::Tensor x = input.contiguous();
    const std::int64_t rows = x.numel() / x.size(-1);
    // Many rows go block by block. Few keep the gradient of their logits and multiply in backward,
    // where dW goes straight into its sink; in forward it would need a tensor of its own.
    if (!wanted.any || rows > block_rows)
      return recorded_by_blocks(x, weight, row_loss, scale, block_rows, wanted);
    const at::Tensor logits = at::empty({rows, w.size(0)}, x.options());
    const at::Tensor multiplied = factor(x, w.scalar_type());
    // logits [rows, V] = x [rows, D] times weight^T [D, V]
    matmul(logits, multiplied.view({rows, -1}), w.t());
    const double loss = row_loss(logits, 0, true);
    return recorded_at_once(multiplied, weight, logits, scalar(loss * scale, x), wanted,
                            x.scalar_type());
  })[0];
}

at::Tensor linear_cross_entropy(const at::Tensor& input, const Weight& weight,
                                const at::Tensor& labels, double scale, std::int64_t block_rows) {
  const at::Tensor label = labels.contiguous();
  const std::int64_t width = input.dim() ? input.size(-1) : 1;
  check_labels(label, input.numel() / std::max<std::int64_t>(width, 1), weight.tensor.size(0));
  const auto* labels_of = label.const_data_ptr<std::int64_t>();
  const RowLoss row_loss = [&](const at::Tensor& logits, std::int64_t first, bool gradient) {
    return entropy_rows(logits, labels_of + first, scale, gradient);
  };
  return linear_loss(input, weight, scale, row_loss, block_rows);
}

at::Tensor cross_entropy(const at::Tensor& input, const at::Tensor& labels, double scale) {
  SHOAL_USER_CHECK(input.dim() >= 1, "cross_entropy", "logits without a dimension");
  return differentiable("cross_entropy", {input}, [&](const Wanted& wanted) {
    // A copy, because the rows become their gradient in place and the caller's logits must not
    // change.
    const at::Tensor logits = input.contiguous().clone();
    const at::Tensor label = labels.contiguous();
    const std::int64_t rows = logits.numel() / logits.size(-1);
    check_labels(label, rows, logits.size(-1));
    const double loss = entropy_rows(logits.view({rows, -1}), label.const_data_ptr<std::int64_t>(),
                                     scale, wanted.any);
    return Recorded{{scalar(loss * scale, logits)},
                    {logits},
                    [](const Tensors& saved, const Tensors& upstream) {
                      return Tensors{times(saved[0], upstream[0].item<double>())};
                    }};
  })[0];
}

}  // namespace shoal::ops
