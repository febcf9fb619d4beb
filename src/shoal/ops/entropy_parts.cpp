#include "shoal/ops/entropy_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "shoal/base/check.h"
#include "shoal/ops/kernel_input.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/softmax_kernels.h"

namespace shoal::ops {
namespace {

/// Labels counted from the first class of the part; -1: not in it.
std::int64_t own_label(std::int64_t label, std::int64_t first, std::int64_t width) {
  return label >= first && label < first + width ? label - first : -1;
}

}  // namespace

at::Tensor entropy_part(const at::Tensor& logits, const at::Tensor& labels, std::int64_t first) {
  const std::int64_t rows = logits.size(0);
  const std::int64_t width = logits.size(1);
  SHOAL_CHECK(labels.numel() == rows && labels.is_contiguous(), "{} labels of {} rows",
              labels.numel(), rows);
  const at::Tensor part = at::zeros({rows, 2}, at::kDouble);
  const auto* label = labels.const_data_ptr<std::int64_t>();
  if (width == 0) {
    part.select(1, 0).fill_(-std::numeric_limits<double>::infinity());
    return part;
  }
  if (!is_fp32_on_cpu(logits)) {
    part.select(1, 0).copy_(at::logsumexp(logits.to(at::kDouble), {1}));
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t own = own_label(label[i], first, width);
      if (own >= 0) part[i][1].copy_(logits[i][own]);
    }
    return part;
  }
  const float* row = logits.const_data_ptr<float>();
  auto* out = part.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < rows; ++i, row += width, out += 2) {
    // Rows that do not count need no sum: they have no loss and no gradient.
    if (label[i] == kIgnoredLabel) continue;
    out[0] = kernels::log_sum_exp_row(width, row);
    const std::int64_t own = own_label(label[i], first, width);
    if (own >= 0) out[1] = row[own];
  }
  return part;
}

void entropy_part_gradient(const at::Tensor& logits, const at::Tensor& labels, std::int64_t first,
                           const at::Tensor& log_sums, double scale) {
  const std::int64_t width = logits.size(1);
  const auto* label = labels.const_data_ptr<std::int64_t>();
  const auto* log_sum = log_sums.const_data_ptr<double>();
  for (std::int64_t i = 0; i < logits.size(0); ++i) {
    const at::Tensor row = logits.select(0, i);
    if (label[i] == kIgnoredLabel) {
      row.zero_();
      continue;
    }
    if (is_fp32_on_cpu(logits)) {
      kernels::softmax_row(width, row.mutable_data_ptr<float>(), log_sum[i],
                           static_cast<float>(scale));
    } else {
      row.sub_(log_sum[i]).exp_().mul_(scale);
    }
    const std::int64_t own = own_label(label[i], first, width);
    if (own >= 0) row.select(0, own).sub_(scale);
  }
}

}  // namespace shoal::ops
