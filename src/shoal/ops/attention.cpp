#include "shoal/ops/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <array>
#include <tuple>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/ops/attention_part.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/kernel_input.h"
#include "shoal/ops/key_ranges.h"

namespace shoal::ops {
namespace {

/// Queries [B, T, groups, per, d] as LibTorch's kernel takes them: [B, heads, T, d], a view.
at::Tensor by_head(const at::Tensor& q) { return q.flatten(2, 3).transpose(1, 2); }

/// Keys or values [B, T, groups, d] in the same way, repeated for their query heads; a view unless
/// there are several.
at::Tensor repeated(const at::Tensor& x, std::int64_t per) {
  return by_head(x.unsqueeze(3).expand({x.size(0), x.size(1), x.size(2), per, x.size(3)}));
}

/// Shoal's own kernel computes fp32 on CPU, LibTorch's all else.
bool has_kernel(const at::Tensor& qkv) { return is_fp32_on_cpu(qkv) && qkv.numel() > 0; }

/// Does LibTorch have a kernel for devices for these heads? It copies vectors of 16 bytes.
bool has_device_kernel(const at::Tensor& qkv, const HeadShape& shape) {
  return !qkv.is_cpu() && qkv.numel() > 0 && qkv.scalar_type() != at::kDouble &&
         shape.head_size % 8 == 0;
}

/// `ranges` as of attention_part; undefined: the causal rule.
Recorded by_parts(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& ranges) {
  // Made anew where it is needed: causal ranges are not kept until backward.
  const auto rule = [ranges](const at::Tensor& x) {
    return ranges.defined() ? ranges : causal_ranges(x.size(1), x.size(1));
  };
  const AttentionPart whole = attention_part(head_tensors(qkv, shape), rule(qkv));
  const at::Tensor out = whole.out.to(qkv.scalar_type());
  // Kept for backward: inputs, output and one logarithm a row, from which the probabilities are
  // made again (Dao et al., 2022). T x T scores are never kept.
  return {
      {out}, {qkv, out, whole.lse}, [shape, rule](const Tensors& saved, const Tensors& gradients) {
        const at::Tensor& qkv = saved[0];
        // Every query, key and value is written: nothing need be zero before.
        const at::Tensor d_qkv = at::empty_like(qkv);
        attention_part_backward(head_tensors(qkv, shape), rule(qkv), {saved[1], saved[2]},
                                gradients[0], head_tensors(d_qkv, shape));
        return Tensors{d_qkv};
      }};
}

/// The results of a forward pass of LibTorch's kernel, which wants them again in backward.
struct Kept {
  at::Tensor out, lse;      ///< [B, heads, T, head_size], and in the kernel's own shape
  at::Tensor seed, offset;  ///< of its dropout, which is not used; devices alone
};

Kept forward_by_libtorch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  // Arguments after the values: dropout 0, causal. The scale is the kernels' default, 1 /
  // sqrt(head_size).
  if (q.is_cpu()) {
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, true);
    return {out, lse, {}, {}};
  }
  const auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
      q, k, v, /*attn_bias=*/{}, /*compute_log_sumexp=*/true, 0, true);
  return {out, lse, seed, offset};
}

std::array<at::Tensor, 3> backward_by_libtorch(const at::Tensor& d_out, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v,
                                               const Kept& kept) {
  if (q.is_cpu()) {
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, q, k, v, kept.out, kept.lse, 0, true);
    return {dq, dk, dv};
  }
  const auto [dq, dk, dv, d_bias] = at::_scaled_dot_product_efficient_attention_backward(
      d_out, q, k, v, /*attn_bias=*/{}, kept.out, kept.lse, kept.seed, kept.offset, 0,
      /*grad_input_mask=*/{true, true, true, false}, true);
  return {dq, dk, dv};
}

// The path of LibTorch: the same function, but bits that may differ with the number of threads.
Recorded by_libtorch(const at::Tensor& input, const HeadShape& shape, at::ScalarType factors) {
  const at::Tensor qkv = input.is_cpu() ? input : factor(input, factors);
  const HeadTensors heads = head_tensors(qkv, shape);
  const std::int64_t per = shape.heads_per_group;
  const std::int64_t count = heads.q.size(2) * per;
  const Kept kept =
      forward_by_libtorch(by_head(heads.q), repeated(heads.k, per), repeated(heads.v, per));
  const at::Tensor joined =
      at::empty({qkv.size(0), qkv.size(1), count * shape.head_size}, input.options());
  joined.view({qkv.size(0), qkv.size(1), count, shape.head_size}).copy_(kept.out.transpose(1, 2));
  return {{joined},
          {qkv, joined, kept.lse, kept.seed, kept.offset},
          [shape](const Tensors& saved, const Tensors& gradients) {
            const at::Tensor& qkv = saved[0];
            const HeadTensors heads = head_tensors(qkv, shape);
            const std::int64_t per = shape.heads_per_group;
            const std::int64_t groups = heads.q.size(2);
            // [B, T, heads x d] as the kernel's [B, heads, T, d], without a copy.
            const auto rows = [&](const at::Tensor& x) {
              return x.view({x.size(0), x.size(1), groups * per, shape.head_size}).transpose(1, 2);
            };
            const auto [dq, dk, dv] = backward_by_libtorch(
                rows(gradients[0].contiguous().to(qkv.scalar_type())), by_head(heads.q),
                repeated(heads.k, per), repeated(heads.v, per),
                {rows(saved[1].to(qkv.scalar_type())), saved[2], saved[3], saved[4]});
            // [B, heads, T, d] as [B, T, groups, per, d].
            const auto by_group = [&](const at::Tensor& x) {
              return x.transpose(1, 2).unflatten(2, {groups, per});
            };
            // Gradients of queries, keys and values go to their places in one tensor, which the
            // backward pass of the projection takes as it is. A key that served several query heads
            // gets the sum of their gradients.
            const at::Tensor d_qkv = at::empty(qkv.sizes(), gradients[0].options());
            const HeadTensors places = head_tensors(d_qkv, shape);
            places.q.copy_(by_group(dq));
            places.k.copy_(by_group(dk).sum(3));
            places.v.copy_(by_group(dv).sum(3));
            return Tensors{d_qkv};
          }};
}

/// The columns of `x` in the order of `columns`; `inverse` is the order that undoes it.
at::Tensor reordered(const at::Tensor& x, const at::Tensor& columns, const at::Tensor& inverse) {
  return differentiable("reordered", {x}, [&](const Wanted&) {
    return Recorded{
        {x.index_select(1, columns)}, {}, [inverse](const Tensors&, const Tensors& gradients) {
          return Tensors{gradients[0].index_select(1, inverse)};
        }};
  })[0];
}

at::Tensor by_ranges(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& ranges,
                     at::ScalarType factors = at::kFloat) {
  return differentiable("attention", {qkv}, [&](const Wanted&) {
    const at::Tensor packed = qkv.contiguous();
    const bool whole = packed.is_cpu() || has_device_kernel(packed, shape);
    if (ranges.defined() || has_kernel(packed) || !whole) return by_parts(packed, shape, ranges);
    return by_libtorch(packed, shape, factors);
  })[0];
}

}  // namespace

at::Tensor attention(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& documents,
                     const at::Tensor& positions, at::ScalarType factors) {
  SHOAL_USER_CHECK(
      qkv.dim() == 3 && qkv.size(2) % ((shape.heads_per_group + 2) * shape.head_size) == 0,
      "attention", "input must be [B, T, groups * ({} + 2) * {}], its last dimension is {}",
      shape.heads_per_group, shape.head_size, qkv.size(-1));
  if (!documents.defined() && !positions.defined()) return by_ranges(qkv, shape, {}, factors);
  SHOAL_USER_CHECK(
      !documents.defined() ||
          (documents.dim() == 2 && (documents.size(0) == 1 || documents.size(0) == qkv.size(0))),
      "attention", "documents must be [{} or 1, {}], not [{}]", qkv.size(0), qkv.size(1),
      fmt::join(documents.sizes(), ", "));
  const TokenPlaces tokens{qkv.size(1), positions, documents};
  if (in_order(tokens)) return by_ranges(qkv, shape, key_ranges(tokens, tokens));
  // Keys in another order (context parallelism gives each rank an early and a late chunk) would be
  // several ranges: the columns are sorted instead, and the result takes their order again.
  const at::Tensor order = at::argsort(positions, /*stable=*/true);
  const at::Tensor columns = order.to(qkv.device());
  const at::Tensor inverse = at::argsort(order).to(qkv.device());
  const TokenPlaces sorted{qkv.size(1), positions.index_select(0, order),
                           documents.defined() ? documents.index_select(1, order) : documents};
  return reordered(by_ranges(reordered(qkv, columns, inverse), shape, key_ranges(sorted, sorted)),
                   inverse, columns);
}

std::pair<at::Tensor, at::Tensor> keys_and_values(const at::Tensor& qkv, const HeadShape& shape) {
  const HeadTensors heads = head_tensors(qkv, shape);
  return {heads.k.transpose(1, 2), heads.v.transpose(1, 2)};
}

at::Tensor attention_over(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                          const HeadShape& shape) {
  const at::Tensor q = head_tensors(qkv, shape).q;
  const at::Tensor k = keys.transpose(1, 2);
  const at::Tensor v = values.transpose(1, 2);
  const std::int64_t queries = qkv.size(1);
  const std::int64_t total = k.size(1);
  if (queries > 1) {
    return attention_part({q, k, v}, causal_ranges(queries, total, total - queries))
        .out.to(qkv.scalar_type());
  }
  // A single query is the last position and sees every key, once: blocks of rows have nothing to
  // share. LibTorch's kernel wants as many heads of keys as of queries, which copies them.
  const at::Tensor rows = by_head(q);
  const at::Tensor every_k = repeated(k, shape.heads_per_group);
  const at::Tensor every_v = repeated(v, shape.heads_per_group);
  const at::Tensor out = q.is_cpu() ? std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
                                          rows, every_k, every_v, 0, false))
                                    : at::scaled_dot_product_attention(rows, every_k, every_v);
  return out.transpose(1, 2).flatten(2);
}

}  // namespace shoal::ops
