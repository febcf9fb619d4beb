#pragma once

#include <cstdint>
#include <vector>

namespace shoal::ops::kernels {

/// Turns one row of scores [count] into softmax(scale * scores). Returns the logarithm of the sum
/// of exponentials.
float softmax_row(std::int64_t count, float scale, float* scores);

/// Computes the backward pass of softmax_row: turns `scores` into the probabilities p again, with
/// the logarithm `lse`, and the gradients `d` of the probabilities into those of the scores, p (d -
/// mean) scale, where `mean` is the sum of p d. Both lie over all keys of the row; `scores` may be
/// a part of them.
void softmax_row_backward(std::int64_t count, float scale, float lse, float mean, float* scores,
                          float* d);

/// Returns the sum of a[i] b[i].
float dot(std::int64_t count, const float* a, const float* b);

/// Query rows that are computed together, [begin, begin + rows), and the keys [first, first +
/// width) that at least one of them sees; the keys outside cost nothing. Width 0: they see none.
struct AttentionBlock {
  std::int64_t begin, rows, first, width;
};

/// Cuts the rows into blocks. `ranges` [queries, 2]: row i sees the keys from ranges[2 i] up to but
/// not including ranges[2 i + 1]; none if these are not in ascending order.
std::vector<AttentionBlock> attention_blocks(std::int64_t queries, const std::int32_t* ranges);

/// Attention of `heads` query heads that share one key-value head. Rows of q, k and v lie their
/// strides apart, counted in floats; the heads of q and of out follow each other, `size` apart.
/// Head h has logarithms lse + h * queries. `blocks` is what attention_blocks makes of `ranges`.
/// The scores exist for one block of rows at a time.
struct AttentionGroup {
  std::int64_t heads, queries, keys, size;
  const float* q;
  std::int64_t q_stride;
  const float* k;
  std::int64_t k_stride;
  const float* v;
  std::int64_t v_stride;
  std::int64_t out_stride;
  const std::int32_t* ranges;
  const std::vector<AttentionBlock>& blocks;
};

/// Places for the gradients, laid out like q, k and v; each has a stride of its own. All of their
/// elements are overwritten.
struct AttentionGradients {
  float* dq;
  std::int64_t dq_stride;
  float* dk;
  std::int64_t dk_stride;
  float* dv;
  std::int64_t dv_stride;
};

/// Computes out and lse. A row that sees no key gets 0 and minus infinity.
void attention_forward(const AttentionGroup& group, float* out, float* lse, float* workspace);

/// Computes the gradients. `out` and `lse` are those over all keys that a row sees, of which
/// `group` may hold a part.
void attention_backward(const AttentionGroup& group, const float* out, const float* lse,
                        const float* d_out, const AttentionGradients& gradients, float* workspace);

/// Returns how many floats, aligned to 64 bytes, the two need as workspace for `blocks`.
std::int64_t attention_workspace(const std::vector<AttentionBlock>& blocks, std::int64_t size);

}  // namespace shoal::ops::kernels
