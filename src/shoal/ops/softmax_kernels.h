#pragma once

#include <cstdint>

namespace shoal::ops::kernels {

/// Computes the cross-entropy of one row of logits: returns -log softmax(row)[label]. With
/// `gradient` the row becomes (softmax - onehot) * scale.
double cross_entropy_row(std::int64_t width, float* row, std::int64_t label, float scale,
                         bool gradient);

/// Returns log(sum of exp(row)), of a row that may be a part of a longer one. width >= 1.
double log_sum_exp_row(std::int64_t width, const float* row);
/// Replaces every element by exp(element - log_sum) * scale: the softmax of the longer row whose
/// log-sum-exp is `log_sum`.
void softmax_row(std::int64_t width, float* row, double log_sum, float scale);

}  // namespace shoal::ops::kernels
