#pragma once

#include <cstdint>

namespace shoal::ops::kernels {

/// Turns one row of scores [width] into softmax(scale * scores + mask); the elements from `seen` on
/// do not count and become zero. `mask` may be null. Returns the logarithm of the sum of
/// exponentials.
float softmax_row(std::int64_t seen, std::int64_t width, float scale, const float* mask,
                  float* scores);

/// Computes the backward pass of softmax_row: turns `scores` into the probabilities p again, with
/// the logarithm that softmax_row returned, and the gradients `d` of the probabilities into those
/// of the scores, p (d - mean) scale, where `mean` is the sum of p d.
void softmax_row_backward(std::int64_t seen, std::int64_t width, float scale, const float* mask,
                          float log_sum, float mean, float* scores, float* d);

/// Returns the sum of a[i] b[i].
float dot(std::int64_t count, const float* a, const float* b);

/// Attention of `heads` query heads that share one key-value head, over `length` tokens. Rows of q,
/// k, v (and their gradients) lie `stride` apart, those of out `out_stride`; the heads of q and out
/// follow each other, `size` apart. Head h has logarithms log_sum + h * length. `mask` [length,
/// length] replaces the causal rule, or null. The scores exist for one block of rows at a time.
struct AttentionGroup {
  std::int64_t heads, length, size, stride, out_stride;
  const float *q, *k, *v, *mask;
};
void attention_forward(const AttentionGroup& group, float* out, float* log_sum, float* workspace);
void attention_backward(const AttentionGroup& group, const float* out, const float* log_sum,
                        const float* d_out, float* dq, float* dk, float* dv, float* workspace);
std::int64_t attention_workspace(std::int64_t length, std::int64_t size);

}  // namespace shoal::ops::kernels
