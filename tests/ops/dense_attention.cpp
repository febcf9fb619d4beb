#include "tests/ops/dense_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

namespace shoal::ops {

AttentionPart dense_attention(const HeadTensors& heads, const at::Tensor& visible) {
  const auto& [q, k, v] = heads;
  const at::Tensor queries = q.permute({0, 2, 3, 1, 4});         // [B, groups, per, T, d]
  const at::Tensor keys = k.permute({0, 2, 1, 3}).unsqueeze(2);  // [B, groups, 1, S, d]
  const at::Tensor values = v.permute({0, 2, 1, 3}).unsqueeze(2);
  const at::Tensor shown = visible.unsqueeze(1).unsqueeze(1);  // [B, 1, 1, T, S]
  const at::Tensor scores =
      queries.matmul(keys.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(4)));
  const at::Tensor some = shown.any(-1, true);
  const at::Tensor top = scores.detach()
                             .masked_fill(shown.logical_not(), -1e30)
                             .amax(-1, true)
                             .masked_fill(some.logical_not(), 0);
  const at::Tensor e = (scores - top).masked_fill(shown.logical_not(), -1e30).exp();
  const at::Tensor sum = e.sum(-1, true);
  const at::Tensor out = e.matmul(values) / sum.masked_fill(some.logical_not(), 1);
  const at::Tensor lse = (sum.log() + top).squeeze(-1).detach();  // [B, groups, per, T]
  return {out.permute({0, 3, 1, 2, 4}).flatten(2), lse.flatten(1, 2)};
}

HeadTensors unpacked(const at::Tensor& qkv, std::int64_t per, std::int64_t size) {
  const at::Tensor parts = qkv.view({qkv.size(0), qkv.size(1), -1, per + 2, size});
  return {parts.narrow(3, 0, per), parts.select(3, per), parts.select(3, per + 1)};
}

at::Tensor visible_in(const at::Tensor& ranges, std::int64_t keys) {
  const at::Tensor key = at::arange(keys, at::kInt);
  return (key >= ranges.select(2, 0).unsqueeze(2))
      .logical_and(key < ranges.select(2, 1).unsqueeze(2));
}

double apart(const at::Tensor& x, const at::Tensor& expected) {
  if (x.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  if (x.numel() == 0) return 0;
  const at::Tensor found = x.detach().to(at::kDouble);
  const at::Tensor wanted = expected.detach().to(at::kDouble);
  const at::Tensor difference =
      at::where(found == wanted, at::zeros_like(wanted), (found - wanted).abs());
  const double most = difference.max().item<double>();  // not a number if any is not
  const double scale = wanted.masked_fill(wanted.abs().isinf(), 0).abs().max().item<double>();
  return std::isfinite(most) ? most / std::max(scale, 1e-3)
                             : std::numeric_limits<double>::infinity();
}

}  // namespace shoal::ops
