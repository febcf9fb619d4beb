#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "shoal/ops/gradient_sink.h"

namespace shoal::ops {

/// The label of rows that do not count.
inline constexpr std::int64_t kIgnoredLabel = -100;

/// Throws Error(data) that names the first label which is neither kIgnoredLabel nor one of
/// `classes` classes, Error(usage) unless `labels` are `rows` int64 numbers. Contiguous.
void check_labels(const at::Tensor& labels, std::int64_t rows, std::int64_t classes);

/// The loss of rows of logits. Both functions see contiguous `logits` [rows, V], the first of which
/// is row `first` of the input.
struct RowLoss {
  /// Returns the summed loss, and with `gradient` puts the gradient of the logits, times the scale
  /// of the loss, in their place.
  std::function<double(const at::Tensor& logits, std::int64_t first, bool gradient)> loss;
  /// Puts the gradient in the place of logits that `loss` has seen before: the same bits. It holds
  /// all that it reads, for it may run after backward, and does not communicate. Only for
  /// LossBlocks::recompute_logits.
  std::function<void(const at::Tensor& logits, std::int64_t first)> gradient = {};
};

/// What linear_loss does with more rows than it computes at once.
struct LossBlocks {
  std::int64_t rows = 1024;  ///< that are computed at once
  /// False: the gradient of the weight is finished in forward and kept until backward, as large as
  /// the weight. True: it is made in backward, from logits that are computed a second time. That is
  /// a fourth product beside three, and it can be put off (GradientSink::later). The bits are the
  /// same.
  bool recompute_logits = false;
};

/// Returns a scalar: `scale` times the summed `row_loss` of the logits x weight^T. x [..., D],
/// weight [V, D].
///
/// A 16-bit weight meets x and the gradient of the logits rounded to its type; logits, softmax and
/// loss are float32.
///
/// The logits of one block of rows exist once: they become their gradient in place, so that memory
/// is a block's logits and not three times the whole. With more rows than one block the gradient of
/// x is finished in forward, block by block, and that of the weight as `blocks` says; otherwise
/// both are made in backward.
at::Tensor linear_loss(const at::Tensor& x, const Weight& weight, double scale,
                       const RowLoss& row_loss, const LossBlocks& blocks = {});

/// Returns a scalar: `scale` times the summed cross-entropy of logits x weight^T against `labels`
/// (int64, one for each row of x; rows with kIgnoredLabel do not count), by linear_loss.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Weight& weight, const at::Tensor& labels,
                                double scale, const LossBlocks& blocks = {});

/// As above for given logits [..., V].
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double scale);

/// Return `scale` times the sum over all elements of the squared or absolute difference. Both
/// tensors have the same shape; `target` gets no gradient.
at::Tensor squared_error(const at::Tensor& x, const at::Tensor& target, double scale);
at::Tensor absolute_error(const at::Tensor& x, const at::Tensor& target, double scale);

}  // namespace shoal::ops
