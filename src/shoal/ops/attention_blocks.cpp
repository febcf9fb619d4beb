// Causal attention by blocks of query rows, on the same product as the linear layers.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "shoal/ops/attention_kernels.h"
#include "shoal/ops/gemm_kernels.h"

namespace shoal::ops::kernels {
namespace {

/// Query rows at a time: 192 x 1024 scores and their gradients stay in the second and third cache.
constexpr std::int64_t kBlockRows = 192;

/// One block of query rows of one head.
struct Block {
  std::int64_t begin, rows, width;  // queries [begin, begin + rows) see keys [0, width) at most

  Block(const AttentionGroup& group, std::int64_t index)
      : begin(index * kBlockRows),
        rows(std::min(kBlockRows, group.length - begin)),
        // Causal: no row of the block sees a key behind the block's last row, so half of the work
        // is never done. A mask of the caller may allow any key.
        width(group.mask == nullptr ? begin + rows : group.length) {}

  std::int64_t seen(const AttentionGroup& group, std::int64_t row) const {
    return group.mask == nullptr ? begin + row + 1 : width;
  }
  const float* mask(const AttentionGroup& group, std::int64_t row) const {
    return group.mask == nullptr ? nullptr : group.mask + (begin + row) * group.length;
  }
};

std::int64_t block_count(const AttentionGroup& group) {
  return (group.length + kBlockRows - 1) / kBlockRows;
}
float scale_of(const AttentionGroup& group) {
  return 1 / std::sqrt(static_cast<float>(group.size));
}

// The three shapes of product below: scores (rows x keys over head_size), out and dq (rows x
// head_size over keys), dk and dv (keys x head_size over rows).
std::int64_t products_workspace(std::int64_t length, std::int64_t size) {
  const std::int64_t rows = std::min(kBlockRows, length);
  const std::size_t wanted =
      std::max({gemm_workspace(rows, length, size), gemm_workspace(rows, size, length),
                gemm_workspace(length, size, rows)});
  // A multiple of 16 floats: what lies behind begins at 64 bytes again.
  return static_cast<std::int64_t>((wanted + 15) / 16 * 16);
}

}  // namespace

// gemm_workspace grows with none of its arguments evenly (blocks of depth are cut evenly), so every
// depth that occurs is covered by its largest.
std::int64_t attention_workspace(std::int64_t length, std::int64_t size) {
  std::int64_t products = 0;
  for (std::int64_t width = std::min(kBlockRows, length);;
       width = std::min(width + kBlockRows, length)) {
    products = std::max(products, products_workspace(width, size));
    if (width == length) break;
  }
  return products + 2 * std::min(kBlockRows, length) * ((length + 15) / 16 * 16);
}

// out = softmax(q k^T / sqrt(d) + mask) v, a block of query rows at a time. All keys of a row are
// there at once, so the softmax needs no running maximum as in FlashAttention; only the block's
// scores exist.
void attention_forward(const AttentionGroup& group, float* out, float* log_sum, float* workspace) {
  float* scores = workspace;
  float* products =
      workspace + 2 * std::min(kBlockRows, group.length) * ((group.length + 15) / 16 * 16);
  for (std::int64_t head = 0; head < group.heads; ++head) {
    const float* q = group.q + head * group.size;
    for (std::int64_t index = 0; index < block_count(group); ++index) {
      const Block block(group, index);
      // S = q k^T
      gemm(block.rows, block.width, group.size, {q + block.begin * group.stride, group.stride, 1},
           {group.k, 1, group.stride}, scores, block.width, false, products);
      for (std::int64_t row = 0; row < block.rows; ++row) {
        log_sum[head * group.length + block.begin + row] =
            softmax_row(block.seen(group, row), block.width, scale_of(group),
                        block.mask(group, row), scores + row * block.width);
      }
      // out = P v
      gemm(block.rows, group.size, block.width, {scores, block.width, 1},
           {group.v, group.stride, 1}, out + block.begin * group.out_stride + head * group.size,
           group.out_stride, false, products);
    }
  }
}

void attention_backward(const AttentionGroup& group, const float* out, const float* log_sum,
                        const float* d_out, float* dq, float* dk, float* dv, float* workspace) {
  const std::int64_t plane = std::min(kBlockRows, group.length) * ((group.length + 15) / 16 * 16);
  float* scores = workspace;
  float* d_scores = workspace + plane;
  float* products = workspace + 2 * plane;
  bool first = true;  // the last block reaches every key: it overwrites dk and dv, the others add
  for (std::int64_t head = 0; head < group.heads; ++head) {
    // From the last block to the first, see `first`.
    for (std::int64_t index = block_count(group); index-- > 0; first = false) {
      const Block block(group, index);
      const std::int64_t from = block.begin * group.stride + head * group.size;
      const std::int64_t out_from = block.begin * group.out_stride + head * group.size;
      const MatrixView q{group.q + from, group.stride, 1};
      const MatrixView d{d_out + out_from, group.out_stride, 1};
      // S = q k^T again, and dP = dO v^T.
      gemm(block.rows, block.width, group.size, q, {group.k, 1, group.stride}, scores, block.width,
           false, products);
      gemm(block.rows, block.width, group.size, d, {group.v, 1, group.stride}, d_scores,
           block.width, false, products);
      for (std::int64_t row = 0; row < block.rows; ++row) {
        // sum_j P_j dP_j of the row, which equals dot(dO, O): known without P.
        const float mean = dot(group.size, d_out + out_from + row * group.out_stride,
                               out + out_from + row * group.out_stride);
        softmax_row_backward(block.seen(group, row), block.width, scale_of(group),
                             block.mask(group, row),
                             log_sum[head * group.length + block.begin + row], mean,
                             scores + row * block.width, d_scores + row * block.width);
      }
      // scores holds P and d_scores dS by now: dv += P^T dO, dk += dS^T q, dq = dS k.
      gemm(block.width, group.size, block.rows, {scores, 1, block.width}, d, dv, group.stride,
           !first, products);
      gemm(block.width, group.size, block.rows, {d_scores, 1, block.width}, q, dk, group.stride,
           !first, products);
      gemm(block.rows, group.size, block.width, {d_scores, block.width, 1},
           {group.k, group.stride, 1}, dq + from, group.stride, false, products);
    }
  }
}

}  // namespace shoal::ops::kernels
