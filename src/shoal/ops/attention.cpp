#include "shoal/ops/attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <tuple>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/ops/attention_kernels.h"
#include "shoal/ops/differentiable.h"

namespace shoal::ops {
namespace {

struct Heads {
  at::Tensor q, k, v;  // views: q [B, T, groups, per, d]; k, v [B, T, groups, 1, d]
};

// The layout of the parameter: per key-value head its query heads, its key, its value. All three
// are views, so a gradient written through them needs no concatenation.
Heads split(const at::Tensor& qkv, const HeadShape& shape) {
  const at::Tensor parts =
      qkv.view({qkv.size(0), qkv.size(1), -1, shape.heads_per_group + 2, shape.head_size});
  return {parts.narrow(3, 0, shape.heads_per_group), parts.narrow(3, shape.heads_per_group, 1),
          parts.narrow(3, shape.heads_per_group + 1, 1)};
}

/// [B, T, groups, 1 or per, d] as LibTorch's kernel takes it: [B, heads, T, d], a view unless keys
/// must be repeated for their query heads.
at::Tensor by_head(const at::Tensor& x, std::int64_t per) {
  return x.expand({x.size(0), x.size(1), x.size(2), per, x.size(4)}).flatten(2, 3).transpose(1, 2);
}

/// The gradient [B, heads, T, d] of by_head's result, written to its place.
void back(const at::Tensor& gradient, const at::Tensor& place) {
  const std::int64_t groups = place.size(2);
  const at::Tensor parts = gradient.transpose(1, 2).unflatten(2, {groups, -1});
  // A key that served several query heads gets the sum of their gradients.
  place.copy_(place.size(3) == parts.size(3) ? parts : parts.sum(3, true));
}

/// Minus infinity for whole rows has no softmax; masks here always keep the diagonal.
std::optional<at::Tensor> optional(const at::Tensor& mask, std::int64_t batch, std::int64_t heads) {
  if (!mask.defined()) return std::nullopt;
  return mask.expand({batch, heads, mask.size(2), mask.size(3)});
}

/// Shoal's own kernel computes fp32 on CPU, LibTorch's all else.
bool has_kernel(const at::Tensor& qkv, const at::Tensor& mask) {
  return qkv.scalar_type() == at::kFloat && qkv.device().is_cpu() && qkv.numel() > 0 &&
         (!mask.defined() || mask.scalar_type() == at::kFloat);
}

/// Calls `run(group, number of the group, first element of it in qkv, in out, workspace)` for each
/// key-value head of each sequence.
template <class Run>
void for_groups(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& mask, Run&& run) {
  const std::int64_t per = shape.heads_per_group;
  const std::int64_t d = shape.head_size;
  const std::int64_t length = qkv.size(1);
  // Rows of q, k and v lie `stride` apart: the kernel reads the heads where they lie, without a
  // copy by head.
  const std::int64_t stride = qkv.size(2);
  const std::int64_t groups = stride / ((per + 2) * d);
  const std::int64_t out_stride = groups * per * d;
  const float* base = qkv.const_data_ptr<float>();
  // A task is one key-value head of one sample with its query heads. Tasks write to places of their
  // own: any number of threads gives the same bits.
  at::parallel_for(0, qkv.size(0) * groups, 1, [&](std::int64_t begin, std::int64_t end) {
    // One workspace a thread: scores of a block and the packed panels of its products.
    const at::Tensor workspace = at::empty({kernels::attention_workspace(length, d)}, at::kFloat);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t sample = i / groups;
      const std::int64_t at = sample * length * stride + i % groups * (per + 2) * d;
      // A mask [1, 1, T, T] serves all samples.
      const float* rule = mask.defined() ? mask.const_data_ptr<float>() +
                                               (mask.size(0) > 1 ? sample : 0) * length * length
                                         : nullptr;
      const kernels::AttentionGroup group{per,
                                          length,
                                          d,
                                          stride,
                                          out_stride,
                                          base + at,
                                          base + at + per * d,
                                          base + at + (per + 1) * d,
                                          rule};
      run(group, i, at, sample * length * out_stride + i % groups * per * d,
          workspace.mutable_data_ptr<float>());
    }
  });
}

Recorded by_kernel(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& any_mask) {
  const at::Tensor mask = any_mask.defined() ? any_mask.contiguous() : any_mask;
  const std::int64_t per = shape.heads_per_group;
  const std::int64_t length = qkv.size(1);
  const std::int64_t groups = qkv.size(2) / ((per + 2) * shape.head_size);
  const at::Tensor out =
      at::empty({qkv.size(0), length, groups * per * shape.head_size}, qkv.options());
  // Kept for backward: inputs, output and one logarithm a row, from which the probabilities are
  // made again (Dao et al., 2022). T x T scores are never kept.
  const at::Tensor log_sum = at::empty({qkv.size(0) * groups, per, length}, qkv.options());
  for_groups(qkv, shape, mask,
             [&](const kernels::AttentionGroup& group, std::int64_t i, std::int64_t,
                 std::int64_t to, float* workspace) {
               kernels::attention_forward(group, out.mutable_data_ptr<float>() + to,
                                          log_sum.mutable_data_ptr<float>() + i * per * length,
                                          workspace);
             });
  return {
      {out}, {qkv, out, log_sum}, [shape, mask](const Tensors& saved, const Tensors& gradients) {
        const at::Tensor& qkv = saved[0];
        const at::Tensor& out = saved[1];
        const at::Tensor& log_sum = saved[2];
        const at::Tensor d_out = gradients[0].contiguous();
        // Each group writes all of its queries, keys and values: nothing need be zero before.
        const at::Tensor d_qkv = at::empty_like(qkv);
        const std::int64_t per = shape.heads_per_group;
        for_groups(qkv, shape, mask,
                   [&](const kernels::AttentionGroup& group, std::int64_t i, std::int64_t from,
                       std::int64_t to, float* workspace) {
                     float* dq = d_qkv.mutable_data_ptr<float>() + from;
                     kernels::attention_backward(
                         group, out.const_data_ptr<float>() + to,
                         log_sum.const_data_ptr<float>() + i * per * group.length,
                         d_out.const_data_ptr<float>() + to, dq, dq + per * shape.head_size,
                         dq + (per + 1) * shape.head_size, workspace);
                   });
        return Tensors{d_qkv};
      }};
}

}  // namespace

at::Tensor attention(const at::Tensor& input, const HeadShape& shape, const at::Tensor& mask) {
  SHOAL_USER_CHECK(
      input.dim() == 3 && input.size(2) % ((shape.heads_per_group + 2) * shape.head_size) == 0,
      "attention", "input must be [B, T, groups * ({} + 2) * {}], its last dimension is {}",
      shape.heads_per_group, shape.head_size, input.size(-1));
  SHOAL_USER_CHECK(
      !mask.defined() ||
          (mask.dim() == 4 && (mask.size(0) == 1 || mask.size(0) == input.size(0)) &&
           mask.size(1) == 1 && mask.size(2) == input.size(1) && mask.size(3) == input.size(1)),
      "attention", "the mask must be [B or 1, 1, T, T]");
  return differentiable("attention", {input}, [&](const Wanted&) {
    const at::Tensor qkv = input.contiguous();
    // The path of LibTorch: the same function, but bits that may differ with the number of threads.
    if (has_kernel(qkv, mask)) return by_kernel(qkv, shape, mask);
    const Heads heads = split(qkv, shape);
    const std::int64_t per = shape.heads_per_group;
    const std::int64_t count = heads.q.size(2) * per;
    const auto bias = optional(mask, qkv.size(0), count);
    // Arguments after the values: dropout 0, causal where there is no mask, the mask. The scale is
    // the kernel's default, 1 / sqrt(head_size).
    const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        by_head(heads.q, per), by_head(heads.k, per), by_head(heads.v, per), 0, !mask.defined(),
        bias);
    const at::Tensor joined =
        at::empty({qkv.size(0), qkv.size(1), count * shape.head_size}, qkv.options());
    joined.view({qkv.size(0), qkv.size(1), count, shape.head_size}).copy_(out.transpose(1, 2));
    return Recorded{
        {joined},
        {qkv, joined, logsumexp},
        [shape, mask](const Tensors& saved, const Tensors& gradients) {
          const at::Tensor& qkv = saved[0];
          const at::Tensor& joined = saved[1];
          const Heads heads = split(qkv, shape);
          const std::int64_t per = shape.heads_per_group;
          const std::int64_t count = heads.q.size(2) * per;
          // [B, T, heads x d] as the kernel's [B, heads, T, d], without a copy.
          const auto rows = [&](const at::Tensor& x) {
            return x.view({x.size(0), x.size(1), count, shape.head_size}).transpose(1, 2);
          };
          const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
              rows(gradients[0].contiguous()), by_head(heads.q, per), by_head(heads.k, per),
              by_head(heads.v, per), rows(joined), saved[2], 0, !mask.defined(),
              optional(mask, qkv.size(0), count));
          const at::Tensor d_qkv = at::empty_like(qkv);
          // Gradients of queries, keys and values go to their places in one tensor, which the
          // backward pass of the projection takes as it is.
          const Heads places = split(d_qkv, shape);
          back(dq, places.q), back(dk, places.k), back(dv, places.v);
          return Tensors{d_qkv};
        }};
  })[0];
}

std::pair<at::Tensor, at::Tensor> keys_and_values(const at::Tensor& qkv, const HeadShape& shape) {
  const Heads heads = split(qkv, shape);
  return {heads.k.select(3, 0).transpose(1, 2), heads.v.select(3, 0).transpose(1, 2)};
}

at::Tensor attention_over(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                          const HeadShape& shape, const at::Tensor& mask) {
  const Heads heads = split(qkv, shape);
  const std::int64_t per = shape.heads_per_group;
  const std::int64_t queries = qkv.size(1);
  const std::int64_t count = heads.q.size(2) * per;
  // LibTorch's kernel wants as many keys as queries: expand() repeats them, and flatten() copies
  // them.
  const auto repeated = [&](const at::Tensor& x) {
    return by_head(x.transpose(1, 2).unsqueeze(3), per);
  };
  // A single query is the last position and sees every key: no mask. Several queries over longer
  // keys need one, because is_causal of LibTorch would align them with the first keys.
  const at::Tensor rule = mask.defined() || queries == 1
                              ? mask
                              : causal_mask(queries, keys.size(2), {}, {}, qkv.scalar_type());
  const auto result = at::_scaled_dot_product_flash_attention_for_cpu(
      by_head(heads.q, per), repeated(keys), repeated(values), 0, false,
      optional(rule, qkv.size(0), count));
  return std::get<0>(result).transpose(1, 2).reshape(
      {qkv.size(0), queries, count * shape.head_size});
}

at::Tensor causal_mask(std::int64_t queries, std::int64_t keys, const at::Tensor& documents,
                       const at::Tensor& positions, at::ScalarType type) {
  // Queries are the last of the keys, so their positions are the tail of `order`.
  const at::Tensor order = positions.defined() ? positions : at::arange(keys, at::kLong);
  const auto pairs = [&](const at::Tensor& x) {  // [.., S] to ([.., T, 1], [.., 1, S])
    return std::pair(x.narrow(-1, keys - queries, queries).unsqueeze(-1), x.unsqueeze(-2));
  };
  const auto [query, key] = pairs(order);
  // A query sees keys at its own position and before, and only of its own document.
  at::Tensor hidden = (key > query).unsqueeze(0);
  if (documents.defined()) {
    const auto [mine, other] = pairs(documents);
    hidden = hidden.logical_or(mine != other);
  }
  return at::zeros(hidden.sizes(), type)
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity())
      .unsqueeze(1);
}

}  // namespace shoal::ops
