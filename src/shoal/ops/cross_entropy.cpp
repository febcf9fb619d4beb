#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
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

/// As plain_rows, for logits on another device: operators on whole tensors, and one number that
/// comes back to the host. `labels` [rows] lie with the host.
double device_rows(const at::Tensor& logits, const at::Tensor& labels, double scale,
                   bool gradient) {
  const at::Tensor label = labels.to(logits.device());
  const at::Tensor ignored = label.eq(kIgnoredLabel);
  // A row that does not count takes any class, and is cleared below.
  const at::Tensor index = label.clamp_min(0).unsqueeze(1);
  const at::Tensor log_probability = at::_log_softmax(logits, -1, false);
  const at::Tensor losses =
      log_probability.gather(1, index).squeeze(1).to(at::kDouble).masked_fill_(ignored, 0);
  if (gradient) {
    at::Tensor result = logits;
    at::exp_out(result, log_probability);
    result.scatter_add_(1, index, at::full(index.sizes(), -1, logits.options()));
    result.mul_(scale).masked_fill_(ignored.unsqueeze(1), 0);
  }
  return -losses.sum().item<double>();
}

/// The summed loss of contiguous `logits` [rows, V], which become their gradient times `scale` when
/// `gradient`. `labels` [rows], contiguous.
double entropy_rows(const at::Tensor& logits, const at::Tensor& labels, double scale,
                    bool gradient) {
  if (!logits.is_cpu()) return device_rows(logits, labels, scale, gradient);
  const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
  if (logits.scalar_type() != at::kFloat) return plain_rows(logits, label, scale, gradient);
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

/// Calls `each(logits [count, V], part of x [count, D], first row)` block after block. x [rows, D]
/// as it is multiplied; the logits are of type `type`, and may be overwritten.
template <class Each>
void for_blocks(const at::Tensor& x, const at::Tensor& w, at::ScalarType type,
                std::int64_t block_rows, const Each& each) {
  const std::int64_t rows = x.size(0);
  // One block of logits, used again and again: at a vocabulary of 50,000 and 1,024 rows that is 200
  // MB. All rows of a batch would be that many times more.
  const at::Tensor logits =
      at::empty({std::min(rows, block_rows), w.size(0)}, x.options().dtype(type));
  for (std::int64_t begin = 0; begin < rows; begin += block_rows) {
    const std::int64_t count = std::min(block_rows, rows - begin);
    const at::Tensor block = logits.narrow(0, 0, count);
    const at::Tensor part = x.narrow(0, begin, count);
    matmul(block, part, w.t());
    each(block, part, begin);
  }
}

/// Adds the product of a block to dW. Blocks add up in order; the first one overwrites.
void add_block(const at::Tensor& dw, const at::Tensor& gradient, const at::Tensor& part,
               std::int64_t begin) {
  matmul(dw, gradient.t(), part, begin > 0);
}

/// Writes `factor` times a finished gradient to its place.
void write_times(const at::Tensor& target, bool accumulate, const at::Tensor& gradient,
                 double factor) {
  accumulate ? target.add_(gradient, factor) : target.copy_(times(gradient, factor));
}

/// Block by block, with dx finished here, and dW too unless the logits are computed again for it.
Recorded recorded_by_blocks(const at::Tensor& input, const Weight& weight, const RowLoss& row_loss,
                            double scale, const LossBlocks& blocks, const Wanted& wanted) {
  const at::Tensor& w = weight.tensor;
  const at::Tensor multiplied = factor(input, w.scalar_type());
  const at::ScalarType type = input.scalar_type();
  const at::Tensor x = multiplied.view({-1, input.size(-1)});
  const bool weight_wanted = wanted.any && wanted.input[1];
  const bool again = weight_wanted && blocks.recompute_logits;
  const at::Tensor dx =
      wanted.any && wanted.input[0] ? at::empty(input.sizes(), input.options()) : at::Tensor();
  const at::Tensor dw =
      weight_wanted && !again ? at::empty(w.sizes(), input.options()) : at::Tensor();
  double loss = 0;
  for_blocks(x, w, type, blocks.rows,
             [&](const at::Tensor& block, const at::Tensor& part, std::int64_t begin) {
               const bool gradient = dx.defined() || dw.defined();
               loss += row_loss.loss(block, begin, gradient);
               if (!gradient) return;
               // The block holds softmax - onehot by now. Its part of dx and dW is finished before
               // the next block overwrites it.
               const at::Tensor g = factor(block, w.scalar_type());
               if (dx.defined()) {
                 matmul(dx.view({x.size(0), x.size(1)}).narrow(0, begin, part.size(0)), g, w);
               }
               if (dw.defined()) add_block(dw, g, part, begin);
             });
  const at::Tensor result = scalar(loss * scale, input);
  if (!again) {
    // The gradients are finished. Backward only hands them on, times the gradient of the loss.
    return {
        {result}, {dx, dw}, [sink = weight.sink](const Tensors& saved, const Tensors& upstream) {
          const at::Tensor& dw = saved[1];
          const double factor = upstream[0].item<double>();
          Tensors result{saved[0].defined() ? times(saved[0], factor) : saved[0], {}};
          if (dw.defined() && sink) {
            result[1] = deliver(sink, dw, [&](const at::Tensor& target, bool accumulate) {
              write_times(target, accumulate, dw, factor);
            });
          } else if (dw.defined()) {
            result[1] = times(dw, factor);
          }
          return result;
        }};
  }
  return {{result},
          {dx, multiplied, w},
          [sink = weight.sink, gradient = row_loss.gradient, rows = blocks.rows, type](
              const Tensors& saved, const Tensors& upstream) {
            const double factor_of_loss = upstream[0].item<double>();
            const at::Tensor& w = saved[2];
            // It holds all that it reads, because the sink may run it after backward.
            const auto write = [x = saved[1].view({-1, w.size(1)}), w, gradient, rows, type,
                                factor_of_loss](const at::Tensor& target, bool accumulate) {
              // The blocks are summed up by themselves and then added, as dW of the forward pass
              // is: were they added to the target one by one, its last bits would differ.
              const bool alone = !accumulate && factor_of_loss == 1 && target.scalar_type() == type;
              const at::Tensor dw = alone ? target : at::empty(w.sizes(), x.options().dtype(type));
              for_blocks(x, w, type, rows,
                         [&](const at::Tensor& block, const at::Tensor& part, std::int64_t begin) {
                           gradient(block, begin);
                           add_block(dw, factor(block, w.scalar_type()), part, begin);
                         });
              if (!alone) write_times(target, accumulate, dw, factor_of_loss);
            };
            Tensors result{saved[0].defined() ? times(saved[0], factor_of_loss) : saved[0], {}};
            result[1] = sink ? deliver_later(sink, write) : deliver(sink, w, write);
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
                       const RowLoss& row_loss, const LossBlocks& blocks) {
  const at::Tensor& w = weight.tensor;
  SHOAL_USER_CHECK(w.dim() == 2 && input.dim() >= 1 && input.size(-1) == w.size(1), "linear_loss",
                   "input [..., {}], weight of {} elements", input.dim() ? input.size(-1) : 0,
                   w.numel());
  SHOAL_USER_CHECK(blocks.rows > 0, "linear_loss", "blocks of {} rows", blocks.rows);
  SHOAL_CHECK(!blocks.recompute_logits || row_loss.gradient,
              "the loss cannot make the gradient of its logits again");
  return differentiable("linear_loss", {input, w}, [&](const Wanted& wanted) {
    const at::Tensor x = input.contiguous();
    const std::int64_t rows = x.numel() / x.size(-1);
    // Many rows go block by block. Few keep the gradient of their logits and multiply in backward,
    // where dW goes straight into its sink; in forward it would need a tensor of its own.
    if (!wanted.any || rows > blocks.rows)
      return recorded_by_blocks(x, weight, row_loss, scale, blocks, wanted);
    const at::Tensor logits = at::empty({rows, w.size(0)}, x.options());
    const at::Tensor multiplied = factor(x, w.scalar_type());
    // logits [rows, V] = x [rows, D] times weight^T [D, V]
    matmul(logits, multiplied.view({rows, w.size(1)}), w.t());
    const double loss = row_loss.loss(logits, 0, true);
    return recorded_at_once(multiplied, weight, logits, scalar(loss * scale, x), wanted,
                            x.scalar_type());
  })[0];
}

at::Tensor linear_cross_entropy(const at::Tensor& input, const Weight& weight,
                                const at::Tensor& labels, double scale, const LossBlocks& blocks) {
  const at::Tensor label = labels.contiguous().view({-1});
  const std::int64_t width = input.dim() ? input.size(-1) : 1;
  check_labels(label, input.numel() / std::max<std::int64_t>(width, 1), weight.tensor.size(0));
  const auto rows_of = [label, scale](const at::Tensor& logits, std::int64_t first, bool gradient) {
    return entropy_rows(logits, label.narrow(0, first, logits.size(0)), scale, gradient);
  };
  const RowLoss row_loss{.loss = rows_of,
                         .gradient = [rows_of](const at::Tensor& logits, std::int64_t first) {
                           rows_of(logits, first, true);
                         }};
  return linear_loss(input, weight, scale, row_loss, blocks);
}

at::Tensor cross_entropy(const at::Tensor& input, const at::Tensor& labels, double scale) {
  SHOAL_USER_CHECK(input.dim() >= 1, "cross_entropy", "logits without a dimension");
  return differentiable("cross_entropy", {input}, [&](const Wanted& wanted) {
    // A copy, because the rows become their gradient in place and the caller's logits must not
    // change.
    const at::Tensor logits = input.contiguous().clone();
    const at::Tensor label = labels.contiguous().view({-1});
    const std::int64_t rows = logits.numel() / logits.size(-1);
    check_labels(label, rows, logits.size(-1));
    const double loss =
        entropy_rows(logits.view({rows, logits.size(-1)}), label, scale, wanted.any);
    return Recorded{{scalar(loss * scale, logits)},
                    {logits},
                    [](const Tensors& saved, const Tensors& upstream) {
                      return Tensors{times(saved[0], upstream[0].item<double>())};
                    }};
  })[0];
}

}  // namespace shoal::ops
