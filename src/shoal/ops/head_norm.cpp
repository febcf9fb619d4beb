#include "shoal/ops/head_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/kernel_input.h"
#include "shoal/ops/norm_kernels.h"

namespace shoal::ops {
namespace {

struct Normed {
  at::Tensor y,
      rstd;  // rstd [B, T, groups, heads_per_group + 1]: of a group's queries, then of its key
};
struct Gradients {
  at::Tensor qkv, query_weight, key_weight;
};

bool has_kernel(const at::Tensor& qkv, const at::Tensor& query_weight,
                const at::Tensor& key_weight) {
  return is_fp32_on_cpu(qkv) && query_weight.scalar_type() == at::kFloat &&
         key_weight.scalar_type() == at::kFloat;
}

/// [B, T, groups, heads_per_group + 2, head_size]
at::Tensor by_head(const at::Tensor& qkv, const HeadShape& shape) {
  return qkv.unflatten(2, {-1, shape.heads_per_group + 2, shape.head_size});
}

/// Returns the factors of the heads of one group: [heads_per_group + 1, head_size].
at::Tensor weights_by_head(const at::Tensor& query_weight, const at::Tensor& key_weight,
                           const HeadShape& shape) {
  return at::cat(
      {query_weight.expand({shape.heads_per_group, shape.head_size}), key_weight.unsqueeze(0)});
}

/// The plain path: any type, any device.
Normed plain_forward(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight,
                     const at::Tensor& key_weight, double epsilon) {
  const std::int64_t normed = shape.heads_per_group + 1;
  const at::Tensor parts = by_head(qkv, shape);
  const at::Tensor x = parts.narrow(3, 0, normed);
  const at::Tensor rstd = (x.square().mean(-1, true) + epsilon).rsqrt();
  const at::Tensor y = x * rstd * weights_by_head(query_weight, key_weight, shape);
  return {at::cat({y, parts.narrow(3, normed, 1)}, 3).flatten(2), rstd.squeeze(-1)};
}

Gradients plain_backward(const at::Tensor& d_out, const at::Tensor& qkv, const HeadShape& shape,
                         const at::Tensor& query_weight, const at::Tensor& key_weight,
                         const at::Tensor& rstd) {
  const std::int64_t queries = shape.heads_per_group;
  const at::Tensor d_parts = by_head(d_out, shape);
  const at::Tensor dy = d_parts.narrow(3, 0, queries + 1);
  const at::Tensor r = rstd.unsqueeze(-1);
  const at::Tensor hat = by_head(qkv, shape).narrow(3, 0, queries + 1) * r;
  const at::Tensor g = dy * weights_by_head(query_weight, key_weight, shape);
  // RMSNorm backwards, see norm_kernels.cpp.
  const at::Tensor dx = (g - hat * (g * hat).mean(-1, true)) * r;
  const at::Tensor d_weights = (dy * hat).sum({0, 1, 2});
  return {at::cat({dx, d_parts.narrow(3, queries + 1, 1)}, 3).flatten(2),
          d_weights.narrow(0, 0, queries).sum(0), d_weights.select(0, queries)};
}

/// Calls `run(first element, number of its first root)` for every group of every token, in order:
/// sums over tokens have one order.
template <class Run>
void for_groups(const at::Tensor& qkv, const HeadShape& shape, Run&& run) {
  const std::int64_t normed = shape.heads_per_group + 1;
  const std::int64_t stride = (normed + 1) * shape.head_size;
  const std::int64_t groups = qkv.numel() / stride;
  // By one thread: weights are shared by all heads, and the order of their sums is part of the
  // result's bits.
  for (std::int64_t i = 0; i < groups; ++i) run(i * stride, i * normed);
}

/// The queries of one group, as rows, and its key.
kernels::NormShape queries_of(const HeadShape& shape, double epsilon) {
  return {shape.heads_per_group, shape.head_size, false, static_cast<float>(epsilon)};
}
kernels::NormShape key_of(const HeadShape& shape, double epsilon) {
  return {1, shape.head_size, false, static_cast<float>(epsilon)};
}

Normed forward(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight,
               const at::Tensor& key_weight, double epsilon) {
  if (!has_kernel(qkv, query_weight, key_weight))
    return plain_forward(qkv, shape, query_weight, key_weight, epsilon);
  const std::int64_t queries = shape.heads_per_group;
  const std::int64_t d = shape.head_size;
  const std::int64_t groups = qkv.size(2) / ((queries + 2) * d);
  const at::Tensor y = at::empty_like(qkv);
  const at::Tensor rstd = at::empty({qkv.size(0), qkv.size(1), groups, queries + 1}, qkv.options());
  const float* from = qkv.const_data_ptr<float>();
  const float* wq = query_weight.const_data_ptr<float>();
  const float* wk = key_weight.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  float* roots = rstd.mutable_data_ptr<float>();
  for_groups(qkv, shape, [&](std::int64_t at, std::int64_t root) {
    const std::int64_t key = at + queries * d;
    const std::int64_t value = key + d;
    // The heads of a group lie side by side: its queries are rows of one norm, its key is one row
    // of another.
    kernels::norm_forward(queries_of(shape, epsilon), from + at, wq, nullptr, to + at, nullptr,
                          roots + root);
    kernels::norm_forward(key_of(shape, epsilon), from + key, wk, nullptr, to + key, nullptr,
                          roots + root + queries);
    // The value of the group passes unchanged; so does its gradient in backward.
    std::copy_n(from + value, d, to + value);
  });
  return {y, rstd};
}

Gradients backward(const at::Tensor& any_d_out, const at::Tensor& qkv, const HeadShape& shape,
                   const at::Tensor& query_weight, const at::Tensor& key_weight,
                   const at::Tensor& rstd) {
  const at::Tensor d_out = any_d_out.contiguous();
  if (!has_kernel(qkv, query_weight, key_weight))
    return plain_backward(d_out, qkv, shape, query_weight, key_weight, rstd);
  const Gradients gradients{at::empty_like(qkv), at::zeros_like(query_weight),
                            at::zeros_like(key_weight)};
  const std::int64_t queries = shape.heads_per_group;
  const std::int64_t d = shape.head_size;
  const float* x = qkv.const_data_ptr<float>();
  const float* dy = d_out.const_data_ptr<float>();
  const float* roots = rstd.const_data_ptr<float>();
  const float* wq = query_weight.const_data_ptr<float>();
  const float* wk = key_weight.const_data_ptr<float>();
  float* dx = gradients.qkv.mutable_data_ptr<float>();
  float* dwq = gradients.query_weight.mutable_data_ptr<float>();
  float* dwk = gradients.key_weight.mutable_data_ptr<float>();
  for_groups(qkv, shape, [&](std::int64_t at, std::int64_t root) {
    const std::int64_t key = at + queries * d;
    const std::int64_t value = key + d;
    // As forward, group by group; the weights' gradients are added up over heads and tokens.
    kernels::norm_backward(queries_of(shape, 0), dy + at, x + at, wq, nullptr, roots + root,
                           nullptr, dx + at, dwq, nullptr);
    kernels::norm_backward(key_of(shape, 0), dy + key, x + key, wk, nullptr, roots + root + queries,
                           nullptr, dx + key, dwk, nullptr);
    std::copy_n(dy + value, d, dx + value);
  });
  return gradients;
}

}  // namespace

at::Tensor head_norm(const at::Tensor& input, const HeadShape& shape, const Weight& query_weight,
                     const Weight& key_weight, double epsilon) {
  const std::int64_t d = shape.head_size;
  SHOAL_USER_CHECK(input.dim() == 3 && input.size(2) % ((shape.heads_per_group + 2) * d) == 0,
                   "head_norm",
                   "input must be [B, T, groups * ({} + 2) * {}], its last dimension is {}",
                   shape.heads_per_group, d, input.size(-1));
  for (const Weight* weight : {&query_weight, &key_weight}) {
    SHOAL_USER_CHECK(weight->tensor.dim() == 1 && weight->tensor.size(0) == d, "head_norm",
                     "a weight has {} elements, a head {}", weight->tensor.numel(), d);
  }
  return differentiable(
      "head_norm", {input, query_weight.tensor, key_weight.tensor}, [&](const Wanted& wanted) {
        const at::Tensor qkv = input.contiguous();
        const Normed out = forward(qkv, shape, summand(query_weight.tensor, qkv),
                                   summand(key_weight.tensor, qkv), epsilon);
        Recorded recorded{{out.y}, {}, {}};
        if (!wanted.any) return recorded;
        recorded.saved = {qkv, query_weight.tensor, key_weight.tensor, out.rstd};
        recorded.backward = [shape, wanted, query_sink = query_weight.sink,
                             key_sink = key_weight.sink](const Tensors& saved,
                                                         const Tensors& gradients) {
          const Gradients g = backward(gradients[0], saved[0], shape, summand(saved[1], saved[0]),
                                       summand(saved[2], saved[0]), saved[3]);
          return Tensors{g.qkv,
                         wanted.input[1] ? hand_over(query_sink, g.query_weight) : at::Tensor(),
                         wanted.input[2] ? hand_over(key_sink, g.key_weight) : at::Tensor()};
        };
        return recorded;
      })[0];
}

}  // namespace shoal::ops
