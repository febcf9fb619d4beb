#include "shoal/ops/attention_part.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/span_recorder.h"
#include "shoal/ops/attention_kernels.h"
#include "shoal/ops/attention_plain.h"

namespace shoal::ops {
namespace {

/// Sums of 16-bit numbers are fp32.
at::ScalarType type_of_sums(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The kernels are for float32 on CPU.
bool is_plain(const at::Tensor& x) { return type_of_sums(x) == at::kDouble || !x.is_cpu(); }
HeadTensors as_sums(const HeadTensors& heads) {
  const at::ScalarType type = type_of_sums(heads.q);
  return {heads.q.to(type), heads.k.to(type), heads.v.to(type)};
}

void check_heads(const HeadTensors& heads) {
  const auto& [q, k, v] = heads;
  SHOAL_USER_CHECK(q.dim() == 5 && k.dim() == 4, "attention",
                   "queries must be [B, T, groups, heads_per_group, head_size] and keys [B, S, "
                   "groups, head_size], not of {} and {} dimensions",
                   q.dim(), k.dim());
  SHOAL_USER_CHECK(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
                   "attention", "queries are {}, keys {} and values {}: they must have one type",
                   c10::toString(q.scalar_type()), c10::toString(k.scalar_type()),
                   c10::toString(v.scalar_type()));
  SHOAL_USER_CHECK(k.size(0) == q.size(0) && k.size(2) == q.size(2) && k.size(3) == q.size(4) &&
                       v.sizes() == k.sizes(),
                   "attention", "queries [{}], keys [{}] and values [{}] do not fit together",
                   fmt::join(q.sizes(), ", "), fmt::join(k.sizes(), ", "),
                   fmt::join(v.sizes(), ", "));
}

void check_ranges(const HeadTensors& heads, const at::Tensor& ranges) {
  const std::int64_t queries = heads.q.size(1);
  const std::int64_t keys = heads.k.size(1);
  SHOAL_USER_CHECK(ranges.dim() == 3 &&
                       (ranges.size(0) == 1 || ranges.size(0) == heads.q.size(0)) &&
                       ranges.size(1) == queries && ranges.size(2) == 2 &&
                       ranges.scalar_type() == at::kInt && ranges.is_contiguous(),
                   "attention", "ranges of keys must be [{} or 1, {}, 2] int32, not [{}]",
                   heads.q.size(0), queries, fmt::join(ranges.sizes(), ", "));
  const auto* bounds = ranges.const_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < ranges.size(0) * queries; ++i) {
    const std::int32_t first = bounds[2 * i];
    const std::int32_t last = bounds[2 * i + 1];
    SHOAL_USER_CHECK(first >= last || (first >= 0 && last <= keys), "attention",
                     "query {} of sample {} is to see the keys {} to {}, of {}", i % queries,
                     i / queries, first, last, keys);
  }
}

/// `x` as the kernels take it: fp32, the elements of a head side by side and its query heads too.
bool fits_kernels(const at::Tensor& x) {
  const std::int64_t last = x.dim() - 1;
  return x.scalar_type() == at::kFloat && (x.stride(last) == 1 || x.size(last) == 1) &&
         (x.dim() == 4 || x.size(3) == 1 || x.stride(3) == x.size(4));
}
at::Tensor for_kernels(const at::Tensor& x) {
  return fits_kernels(x) ? x : x.to(at::kFloat).contiguous();
}
HeadTensors for_kernels(const HeadTensors& heads) {
  return {for_kernels(heads.q), for_kernels(heads.k), for_kernels(heads.v)};
}

/// The place of a group of a sample in a tensor [B, T, groups, ..].
std::int64_t place(const at::Tensor& x, std::int64_t sample, std::int64_t group) {
  return sample * x.stride(0) + group * x.stride(2);
}

/// Calls `run(sample, number of its group, kernels::AttentionGroup, workspace)` for each key-value
/// head of each sample.
template <class Run>
void for_groups(const HeadTensors& heads, const at::Tensor& ranges, Run&& run) {
  const at::Tensor& q = heads.q;
  const at::Tensor& k = heads.k;
  const at::Tensor& v = heads.v;
  const std::int64_t queries = q.size(1);
  const std::int64_t groups = q.size(2);
  const std::int64_t size = q.size(4);
  std::vector<std::vector<kernels::AttentionBlock>> blocks;  // of each sample, or of all
  std::int64_t room = 0;
  for (std::int64_t i = 0; i < ranges.size(0); ++i) {
    blocks.push_back(kernels::attention_blocks(
        queries, ranges.const_data_ptr<std::int32_t>() + i * queries * 2));
    room = std::max(room, kernels::attention_workspace(blocks.back(), size));
  }
  // A task is one key-value head of one sample with its query heads. Tasks write to places of their
  // own: any number of threads gives the same bits.
  at::parallel_for(0, q.size(0) * groups, 1, [&](std::int64_t begin, std::int64_t end) {
    // One workspace a thread: scores of a block and the packed panels of its products.
    const at::Tensor workspace = at::empty({room}, at::kFloat);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t sample = i / groups;
      const std::int64_t group = i % groups;
      const std::int64_t rule = ranges.size(0) > 1 ? sample : 0;
      // The kernel reads the heads where they lie, without a copy by head.
      run(sample, group,
          kernels::AttentionGroup{q.size(3), queries, k.size(1), size,
                                  q.const_data_ptr<float>() + place(q, sample, group), q.stride(1),
                                  k.const_data_ptr<float>() + place(k, sample, group), k.stride(1),
                                  v.const_data_ptr<float>() + place(v, sample, group), v.stride(1),
                                  groups * q.size(3) * size,
                                  ranges.const_data_ptr<std::int32_t>() + rule * queries * 2,
                                  blocks[static_cast<std::size_t>(rule)]},
          workspace.mutable_data_ptr<float>());
    }
  });
}

/// The first element of a group of a sample in `out` [B, T, groups * heads * size].
std::int64_t place_of_out(const kernels::AttentionGroup& group, std::int64_t sample,
                          std::int64_t number) {
  return sample * group.queries * group.out_stride + number * group.heads * group.size;
}
/// The first element of a group of a sample in `lse` [B, groups * heads, T].
std::int64_t place_of_lse(const HeadTensors& heads, std::int64_t sample, std::int64_t number) {
  return (sample * heads.q.size(2) + number) * heads.q.size(3) * heads.q.size(1);
}

void backward_by_kernels(const HeadTensors& heads, const at::Tensor& ranges,
                         const AttentionPart& whole, const at::Tensor& d_out,
                         const HeadTensors& gradients) {
  const at::Tensor& dq = gradients.q;
  const at::Tensor& dk = gradients.k;
  const at::Tensor& dv = gradients.v;
  for_groups(heads, ranges,
             [&](std::int64_t sample, std::int64_t number, const kernels::AttentionGroup& group,
                 float* workspace) {
               const std::int64_t at = place_of_out(group, sample, number);
               const auto to = [&](const at::Tensor& x) {
                 return x.mutable_data_ptr<float>() + place(x, sample, number);
               };
               kernels::attention_backward(
                   group, whole.out.const_data_ptr<float>() + at,
                   whole.lse.const_data_ptr<float>() + place_of_lse(heads, sample, number),
                   d_out.const_data_ptr<float>() + at,
                   {to(dq), dq.stride(1), to(dk), dk.stride(1), to(dv), dv.stride(1)}, workspace);
             });
}

/// One row of one head of merge().
template <class T>
void merge_row(std::int64_t size, T* lse, T* out, T other_lse, const T* other_out) {
  const T top = std::max(*lse, other_lse);
  // Neither part saw a key: minus infinity less itself would be no number.
  if (top == -std::numeric_limits<T>::infinity()) return;
  const T mine = std::exp(*lse - top);
  const T others = std::exp(other_lse - top);
  const T whole = mine + others;
  *lse = top + std::log(whole);
  for (std::int64_t i = 0; i < size; ++i)
    out[i] = (mine / whole) * out[i] + (others / whole) * other_out[i];
}

template <class T>
void merge_all(const AttentionPart& sum, const AttentionPart& part) {
  const std::int64_t heads = sum.lse.size(1);
  const std::int64_t queries = sum.lse.size(2);
  const std::int64_t size = sum.out.size(2) / std::max<std::int64_t>(heads, 1);
  T* out = sum.out.mutable_data_ptr<T>();
  T* lse = sum.lse.mutable_data_ptr<T>();
  const T* other_out = part.out.const_data_ptr<T>();
  const T* other_lse = part.lse.const_data_ptr<T>();
  constexpr std::int64_t kRowsAtLeast = 64;  // of a thread
  at::parallel_for(
      0, sum.lse.size(0) * queries, kRowsAtLeast, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          for (std::int64_t head = 0; head < heads; ++head) {
            const std::int64_t at = (row / queries * heads + head) * queries + row % queries;
            const std::int64_t first = (row * heads + head) * size;
            merge_row(size, lse + at, out + first, other_lse[at], other_out + first);
          }
        }
      });
}

/// Counts the FLOPs of matmuls between what sees each other: `matmuls` of two FLOPs for each pair
/// of query and key and element of a head.
double flops_of(const HeadTensors& heads, const at::Tensor& ranges, int matmuls) {
  const std::int32_t* range = ranges.const_data_ptr<std::int32_t>();
  double pairs = 0;
  for (std::int64_t i = 0; i < ranges.numel(); i += 2)
    pairs += std::max<std::int32_t>(0, range[i + 1] - range[i]);
  const at::Tensor& q = heads.q;
  pairs *= static_cast<double>(q.size(0) / ranges.size(0));
  return 2.0 * matmuls * pairs * static_cast<double>(q.size(2) * q.size(3) * q.size(4));
}

}  // namespace

HeadTensors head_tensors(const at::Tensor& qkv, const HeadShape& shape) {
  const at::Tensor parts =
      qkv.view({qkv.size(0), qkv.size(1), -1, shape.heads_per_group + 2, shape.head_size});
  return {parts.narrow(3, 0, shape.heads_per_group), parts.select(3, shape.heads_per_group),
          parts.select(3, shape.heads_per_group + 1)};
}

AttentionPart attention_part(const HeadTensors& heads, const at::Tensor& ranges) {
  const c10::AutoGradMode not_recording(false);
  check_heads(heads);
  check_ranges(heads, ranges);
  const ScopedSpan span(SpanKind::kAttention, "attention");
  // Scores and weighted values.
  if (span.recorded()) span.work(flops_of(heads, ranges, 2), 0);
  if (is_plain(heads.q)) return plain::attention_part(as_sums(heads), ranges);
  const HeadTensors floats = for_kernels(heads);
  const at::Tensor& q = floats.q;
  const std::int64_t count = q.size(2) * q.size(3);
  const at::Tensor out = at::empty({q.size(0), q.size(1), count * q.size(4)}, q.options());
  const at::Tensor lse = at::empty({q.size(0), count, q.size(1)}, q.options());
  for_groups(floats, ranges,
             [&](std::int64_t sample, std::int64_t number, const kernels::AttentionGroup& group,
                 float* workspace) {
               kernels::attention_forward(
                   group, out.mutable_data_ptr<float>() + place_of_out(group, sample, number),
                   lse.mutable_data_ptr<float>() + place_of_lse(floats, sample, number), workspace);
             });
  return {out, lse};
}

void merge(const AttentionPart& sum, const AttentionPart& part) {
  for (const AttentionPart* x : {&sum, &part}) {
    SHOAL_USER_CHECK(x->out.dim() == 3 && x->lse.dim() == 3 && x->out.is_contiguous() &&
                         x->lse.is_contiguous() && x->lse.size(0) == x->out.size(0) &&
                         x->lse.size(2) == x->out.size(1) &&
                         x->lse.scalar_type() == sum.out.scalar_type() &&
                         x->out.scalar_type() == type_of_sums(sum.out),
                     "attention", "a part must be as attention_part returned it");
  }
  SHOAL_USER_CHECK(sum.out.sizes() == part.out.sizes() && sum.lse.sizes() == part.lse.sizes(),
                   "attention", "parts of [{}] and [{}] cannot be merged",
                   fmt::join(sum.out.sizes(), ", "), fmt::join(part.out.sizes(), ", "));
  if (sum.out.scalar_type() == at::kDouble) {
    merge_all<double>(sum, part);
  } else {
    merge_all<float>(sum, part);
  }
}

void attention_part_backward(const HeadTensors& heads, const at::Tensor& ranges,
                             const AttentionPart& whole, const at::Tensor& d_out,
                             const HeadTensors& gradients) {
  const c10::AutoGradMode not_recording(false);
  check_heads(heads);
  check_ranges(heads, ranges);
  const std::int64_t count = heads.q.size(2) * heads.q.size(3);
  const std::vector<std::int64_t> out_shape{heads.q.size(0), heads.q.size(1),
                                            count * heads.q.size(4)};
  SHOAL_USER_CHECK(whole.out.sizes() == out_shape && d_out.sizes() == out_shape &&
                       whole.lse.sizes() ==
                           (std::vector<std::int64_t>{heads.q.size(0), count, heads.q.size(1)}) &&
                       gradients.q.sizes() == heads.q.sizes() &&
                       gradients.k.sizes() == heads.k.sizes() &&
                       gradients.v.sizes() == heads.v.sizes(),
                   "attention",
                   "the result or a gradient does not have the shape of the forward "
                   "pass, queries [{}]",
                   fmt::join(heads.q.sizes(), ", "));
  const ScopedSpan span(SpanKind::kAttention, "attention", "backward");
  // Scores again, and the gradients of probabilities, values, queries and keys.
  if (span.recorded()) span.work(flops_of(heads, ranges, 5), 0);
  const at::ScalarType type = type_of_sums(heads.q);
  const AttentionPart result{whole.out.to(type).contiguous(), whole.lse.to(type).contiguous()};
  const at::Tensor d = d_out.to(type).contiguous();
  if (is_plain(heads.q))
    return plain::attention_part_backward(as_sums(heads), ranges, result, d, gradients);
  // Kernels write to a tensor beside a place that they cannot write to.
  const HeadTensors places = for_kernels(gradients);
  backward_by_kernels(for_kernels(heads), ranges, result, d, places);
  if (!places.q.is_same(gradients.q)) gradients.q.copy_(places.q);
  if (!places.k.is_same(gradients.k)) gradients.k.copy_(places.k);
  if (!places.v.is_same(gradients.v)) gradients.v.copy_(places.v);
}

}  // namespace shoal::ops
