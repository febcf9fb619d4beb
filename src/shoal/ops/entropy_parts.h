#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shoal::ops {

// Cross-entropy whose classes are divided: each part has the logits of classes [first, first + V).
// Numbers of all parts make those of the whole row, and then each part its gradient.

/// Returns two numbers of each row of `logits` [rows, V], as [rows, 2] float64: the logarithm of
/// the sum of its exponentials, and the logit of its label, or 0 where the label belongs to another
/// part. Those of rows that do not count have no meaning. V may be 0: the first is -infinity.
at::Tensor entropy_part(const at::Tensor& logits, const at::Tensor& labels, std::int64_t first);

/// Replaces `logits` by their gradient: (softmax - onehot) * scale, 0 in rows that do not count.
/// `log_sums` [rows] float64 are the logarithms of the sums over all parts.
void entropy_part_gradient(const at::Tensor& logits, const at::Tensor& labels, std::int64_t first,
                           const at::Tensor& log_sums, double scale);

}  // namespace shoal::ops
