// Attention by blocks of query rows, on the same product as the linear layers.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "shoal/ops/attention_kernels.h"
#include "shoal/ops/gemm_kernels.h"

namespace shoal::ops::kernels {
namespace {

/// Query rows at a time: 192 x 1024 scores and their gradients stay in the second and third cache.
constexpr std::int64_t kBlockRows = 192;

/// A block of fewer rows and keys is not cut: its products cost more to pack than to compute.
constexpr std::int64_t kLeastBlock = 64;

float scale_of(const AttentionGroup& group) {
  return 1 / std::sqrt(static_cast<float>(group.size));
}

/// A multiple of 16 floats: what lies behind begins at 64 bytes again.
std::int64_t aligned(std::int64_t floats) { return (floats + 15) / 16 * 16; }

/// The elements of the largest matrix of scores.
std::int64_t plane_of(const std::vector<AttentionBlock>& blocks) {
  std::int64_t plane = 0;
  for (const AttentionBlock& block : blocks) plane = std::max(plane, block.rows * block.width);
  return aligned(plane);
}

/// The keys that one row of a block sees, counted from the block's first key.
struct Seen {
  std::int64_t begin, end;

  Seen(const AttentionGroup& group, const AttentionBlock& block, std::int64_t row)
      : begin(group.ranges[2 * (block.begin + row)] - block.first),
        end(group.ranges[2 * (block.begin + row) + 1] - block.first) {
    if (begin >= end) begin = end = 0;
  }
  std::int64_t count() const { return end - begin; }

  // The products that follow take the whole width: keys that a row does not see must count as zero.
  void clear_others(float* line, std::int64_t width) const {
    std::fill(line, line + begin, 0.0f);
    std::fill(line + end, line + width, 0.0f);
  }
};

void fill_rows(std::int64_t rows, std::int64_t size, float* to, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row)
    std::fill(to + row * stride, to + row * stride + size, 0.0f);
}

/// Results of the forward pass and the gradient, of the rows of a block of one head.
struct KnownRows {
  const float *out, *lse, *d_out;
};

/// Turns the scores of a block into probabilities P, and dP into the gradients of the scores.
void turn_back(const AttentionGroup& group, const AttentionBlock& block, const KnownRows& known,
               float* scores, float* d_scores) {
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const Seen seen(group, block, row);
    // sum_j P_j dP_j of the row, which equals dot(dO, O): known without P.
    const float mean =
        dot(group.size, known.d_out + row * group.out_stride, known.out + row * group.out_stride);
    float* line = scores + row * block.width;
    float* d_line = d_scores + row * block.width;
    softmax_row_backward(seen.count(), scale_of(group), known.lse[row], mean, line + seen.begin,
                         d_line + seen.begin);
    seen.clear_others(line, block.width);
    seen.clear_others(d_line, block.width);
  }
}

}  // namespace

std::vector<AttentionBlock> attention_blocks(std::int64_t queries, const std::int32_t* ranges) {
  std::vector<AttentionBlock> blocks;
  AttentionBlock block{0, 0, 0, 0};
  for (std::int64_t row = 0; row < queries; ++row) {
    const std::int64_t first = ranges[2 * row];
    const std::int64_t last = ranges[2 * row + 1];
    const std::int64_t end = block.first + block.width;
    // A row that shares no key with those before, as the first of a document, begins a new block:
    // a common one would multiply both documents with each other.
    const bool apart = first < last && block.width > 0 && (first >= end || last <= block.first);
    if (block.rows == kBlockRows || (apart && std::max(block.rows, block.width) >= kLeastBlock)) {
      blocks.push_back(block);
      block = {row, 0, 0, 0};
    }
    ++block.rows;
    if (first >= last) continue;
    if (block.width == 0) {
      block.first = first;
      block.width = last - first;
    } else {
      const std::int64_t furthest = std::max(block.first + block.width, last);
      block.first = std::min(block.first, first);
      block.width = furthest - block.first;
    }
  }
  if (block.rows > 0) blocks.push_back(block);
  return blocks;
}

// gemm_workspace grows with none of its arguments evenly (blocks of depth are cut evenly), so every
// block is asked for. The three shapes of product: scores (rows x keys over head_size), out and dq
// (rows x head_size over keys), dk and dv (keys x head_size over rows).
std::int64_t attention_workspace(const std::vector<AttentionBlock>& blocks, std::int64_t size) {
  std::size_t products = 0;
  for (const AttentionBlock& block : blocks) {
    if (block.width == 0) continue;
    products = std::max({products, gemm_workspace(block.rows, block.width, size),
                         gemm_workspace(block.rows, size, block.width),
                         gemm_workspace(block.width, size, block.rows)});
  }
  return 2 * plane_of(blocks) + aligned(static_cast<std::int64_t>(products));
}

// out = softmax(q k^T / sqrt(d)) v, a block of query rows at a time. All keys of a row are there at
// once, so the softmax needs no running maximum as in FlashAttention; only the block's scores
// exist.
void attention_forward(const AttentionGroup& group, float* out, float* lse, float* workspace) {
  float* scores = workspace;
  float* products = workspace + 2 * plane_of(group.blocks);
  for (std::int64_t head = 0; head < group.heads; ++head) {
    for (const AttentionBlock& block : group.blocks) {
      float* to = out + block.begin * group.out_stride + head * group.size;
      float* logarithms = lse + head * group.queries + block.begin;
      if (block.width == 0) {
        fill_rows(block.rows, group.size, to, group.out_stride);
        std::fill(logarithms, logarithms + block.rows, -std::numeric_limits<float>::infinity());
        continue;
      }
      const float* q = group.q + block.begin * group.q_stride + head * group.size;
      // S = q k^T
      gemm(block.rows, block.width, group.size, {q, group.q_stride, 1},
           {group.k + block.first * group.k_stride, 1, group.k_stride}, scores, block.width, false,
           products);
      for (std::int64_t row = 0; row < block.rows; ++row) {
        const Seen seen(group, block, row);
        float* line = scores + row * block.width;
        logarithms[row] = seen.count() == 0
                              ? -std::numeric_limits<float>::infinity()
                              : softmax_row(seen.count(), scale_of(group), line + seen.begin);
        seen.clear_others(line, block.width);
      }
      // out = P v
      gemm(block.rows, group.size, block.width, {scores, block.width, 1},
           {group.v + block.first * group.v_stride, group.v_stride, 1}, to, group.out_stride, false,
           products);
    }
  }
}

void attention_backward(const AttentionGroup& group, const float* out, const float* lse,
                        const float* d_out, const AttentionGradients& gradients, float* workspace) {
  const auto& [dq, dq_stride, dk, dk_stride, dv, dv_stride] = gradients;
  float* scores = workspace;
  float* d_scores = workspace + plane_of(group.blocks);
  float* products = workspace + 2 * plane_of(group.blocks);
  // Blocks go from the last to the first, because the last of a causal row reaches every key: it
  // overwrites dk and dv, and the others add. Where it does not, all add to zeros.
  bool add = group.blocks.empty() || group.blocks.back().width < group.keys;
  if (add) {
    fill_rows(group.keys, group.size, dk, dk_stride);
    fill_rows(group.keys, group.size, dv, dv_stride);
  }
  for (std::int64_t head = 0; head < group.heads; ++head) {
    for (auto block = group.blocks.rbegin(); block != group.blocks.rend(); ++block) {
      const std::int64_t rows = block->rows;
      const std::int64_t width = block->width;
      float* dq_rows = dq + block->begin * dq_stride + head * group.size;
      if (width == 0) {
        fill_rows(rows, group.size, dq_rows, dq_stride);
        continue;
      }
      const std::int64_t out_from = block->begin * group.out_stride + head * group.size;
      const float* k = group.k + block->first * group.k_stride;
      const float* v = group.v + block->first * group.v_stride;
      const MatrixView q{group.q + block->begin * group.q_stride + head * group.size,
                         group.q_stride, 1};
      const MatrixView d{d_out + out_from, group.out_stride, 1};
      // S = q k^T again, and dP = dO v^T.
      gemm(rows, width, group.size, q, {k, 1, group.k_stride}, scores, width, false, products);
      gemm(rows, width, group.size, d, {v, 1, group.v_stride}, d_scores, width, false, products);
      turn_back(group, *block,
                {out + out_from, lse + head * group.queries + block->begin, d_out + out_from},
                scores, d_scores);
      // scores holds P and d_scores dS by now: dv += P^T dO, dk += dS^T q, dq = dS k.
      gemm(width, group.size, rows, {scores, 1, width}, d, dv + block->first * dv_stride, dv_stride,
           add, products);
      gemm(width, group.size, rows, {d_scores, 1, width}, q, dk + block->first * dk_stride,
           dk_stride, add, products);
      gemm(rows, group.size, width, {d_scores, width, 1}, {k, group.k_stride, 1}, dq_rows,
           dq_stride, false, products);
      add = true;
    }
  }
}

}  // namespace shoal::ops::kernels
