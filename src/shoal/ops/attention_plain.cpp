#include "shoal/ops/attention_plain.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "shoal/ops/attention_kernels.h"

namespace shoal::ops::plain {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// The queries of one block of one sample, and the keys and values that they see.
struct BlockOfHeads {
  at::Tensor q;       // [groups, heads_per_group, rows, head_size]
  at::Tensor k, v;    // [groups, 1, width, head_size]
  at::Tensor hidden;  // [rows, width] bool

  /// q k^T / sqrt(head_size), minus infinity where hidden.
  at::Tensor scores() const {  // [groups, heads_per_group, rows, width]
    return q.matmul(k.transpose(-1, -2))
        .div_(std::sqrt(static_cast<double>(q.size(-1))))
        .masked_fill_(hidden, kNothing);
  }
};

/// Rows of one sample [T, groups, .., head_size] with the heads in front; a view.
at::Tensor rows_of_queries(const at::Tensor& x, std::int64_t sample,
                           const kernels::AttentionBlock& block) {
  return x.select(0, sample).narrow(0, block.begin, block.rows).permute({1, 2, 0, 3});
}
at::Tensor rows_of_keys(const at::Tensor& x, std::int64_t sample,
                        const kernels::AttentionBlock& block) {
  return x.select(0, sample).narrow(0, block.first, block.width).permute({1, 0, 2}).unsqueeze(1);
}

/// Calls `run(sample, block, heads)` for every block that sees a key.
template <class Run>
void for_blocks(const HeadTensors& heads, const at::Tensor& ranges, Run&& run) {
  for (std::int64_t sample = 0; sample < heads.q.size(0); ++sample) {
    const at::Tensor mine = ranges.select(0, ranges.size(0) > 1 ? sample : 0);
    for (const kernels::AttentionBlock& block :
         kernels::attention_blocks(mine.size(0), mine.const_data_ptr<std::int32_t>())) {
      if (block.width == 0) continue;
      const at::Tensor bounds = mine.narrow(0, block.begin, block.rows);
      const at::Tensor keys = at::arange(block.first, block.first + block.width, at::kLong);
      // Ranges stay with the host, whatever the device of the heads.
      const at::Tensor hidden =
          ((keys < bounds.select(1, 0).unsqueeze(1)) | (keys >= bounds.select(1, 1).unsqueeze(1)))
              .to(heads.q.device());
      run(sample, block,
          BlockOfHeads{rows_of_queries(heads.q, sample, block),
                       rows_of_keys(heads.k, sample, block), rows_of_keys(heads.v, sample, block),
                       hidden});
    }
  }
}

/// The rows of a block of out [B, T, ..], by head like the queries; a view.
at::Tensor rows_of_out(const at::Tensor& out, const at::Tensor& q, std::int64_t sample,
                       const kernels::AttentionBlock& block) {
  return rows_of_queries(out.view(q.sizes()), sample, block);
}

/// The rows of a block of lse [B, heads, T]: [groups, heads_per_group, rows], a view.
at::Tensor rows_of_lse(const at::Tensor& lse, const at::Tensor& q, std::int64_t sample,
                       const kernels::AttentionBlock& block) {
  return lse.select(0, sample)
      .view({q.size(2), q.size(3), q.size(1)})
      .narrow(2, block.begin, block.rows);
}

}  // namespace

AttentionPart attention_part(const HeadTensors& heads, const at::Tensor& ranges) {
  const at::Tensor& q = heads.q;
  const std::int64_t count = q.size(2) * q.size(3);
  const at::Tensor out = at::zeros({q.size(0), q.size(1), count * q.size(4)}, q.options());
  const at::Tensor lse = at::full({q.size(0), count, q.size(1)}, kNothing, q.options());
  for_blocks(heads, ranges,
             [&](std::int64_t sample, const kernels::AttentionBlock& block, const auto& rows) {
               const at::Tensor scores = rows.scores();
               const at::Tensor sums = at::logsumexp(scores, {-1});
               // A row without keys has minus infinity less minus infinity: hidden twice.
               const at::Tensor p =
                   (scores - sums.unsqueeze(-1)).masked_fill_(rows.hidden, kNothing).exp_();
               rows_of_lse(lse, q, sample, block).copy_(sums);
               rows_of_out(out, q, sample, block).copy_(p.matmul(rows.v));
             });
  return {out, lse};
}

void attention_part_backward(const HeadTensors& heads, const at::Tensor& ranges,
                             const AttentionPart& whole, const at::Tensor& d_out,
                             const HeadTensors& gradients) {
  const at::Tensor& q = heads.q;
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(4)));
  for (const at::Tensor& gradient : {gradients.q, gradients.k, gradients.v}) gradient.zero_();
  for_blocks(
      heads, ranges,
      [&](std::int64_t sample, const kernels::AttentionBlock& block, const auto& rows) {
        const at::Tensor lse = rows_of_lse(whole.lse, q, sample, block).unsqueeze(-1);
        const at::Tensor p = (rows.scores() - lse).masked_fill_(rows.hidden, kNothing).exp_();
        const at::Tensor d = rows_of_out(d_out, q, sample, block);
        const at::Tensor mean = (d * rows_of_out(whole.out, q, sample, block)).sum(-1, true);
        const at::Tensor ds = p * (d.matmul(rows.v.transpose(-1, -2)) - mean) * scale;
        rows_of_queries(gradients.q, sample, block).add_(ds.matmul(rows.k));
        // A key that served several query heads gets the sum of their gradients.
        rows_of_keys(gradients.k, sample, block)
            .add_(ds.transpose(-1, -2).matmul(rows.q).sum(1, true));
        rows_of_keys(gradients.v, sample, block).add_(p.transpose(-1, -2).matmul(d).sum(1, true));
      });
}

}  // namespace shoal::ops::plain
