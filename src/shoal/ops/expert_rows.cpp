#include "shoal/ops/expert_rows.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/ops/differentiable.h"

namespace shoal::ops {
namespace {

constexpr std::int64_t kRowsAThread = 64;

/// out[t] = sum over j of rows[row_of[t, j]], times gates[t, j] unless there are none.
template <class T>
void add_up(std::int64_t tokens, std::int64_t k, std::int64_t width, const std::int64_t* row_of,
            const T* gates, const T* rows, T* out) {
  at::parallel_for(0, tokens, kRowsAThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      T* sum = out + t * width;
      std::fill(sum, sum + width, T(0));
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int64_t row = row_of[t * k + j];
        if (row < 0) continue;
        const T* from = rows + row * width;
        const T gate = gates ? gates[t * k + j] : T(1);
        for (std::int64_t i = 0; i < width; ++i) sum[i] += gate * from[i];
      }
    }
  });
}

/// d_rows[row] = gate dy[token], d_gates[t, j] = <row, dy[t]>. Null: not wanted.
template <class T>
void combine_backward(std::int64_t tokens, std::int64_t k, std::int64_t width,
                      const std::int64_t* row_of, const T* gates, const T* rows, const T* dy,
                      T* d_rows, T* d_gates) {
  at::parallel_for(0, tokens, kRowsAThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const T* d = dy + t * width;
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int64_t row = row_of[t * k + j];
        if (row < 0) {
          if (d_gates) d_gates[t * k + j] = 0;
          continue;
        }
        if (d_rows) {
          // Every row belongs to one choice: threads write apart.
          T* to = d_rows + row * width;
          for (std::int64_t i = 0; i < width; ++i) to[i] = gates[t * k + j] * d[i];
        }
        if (!d_gates) continue;
        T dot = 0;
        for (std::int64_t i = 0; i < width; ++i) dot += rows[row * width + i] * d[i];
        d_gates[t * k + j] = dot;
      }
    }
  });
}

/// Calls `f` with a number of the type of `x`.
template <class F>
void with_type(const at::Tensor& x, const char* what, F&& f) {
  SHOAL_USER_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, what,
                   "rows of type {}: float32 or float64", c10::toString(x.scalar_type()));
  x.scalar_type() == at::kDouble ? f(double()) : f(float());
}

at::Tensor sum_of_rows(const at::Tensor& y, const at::Tensor& gates, const at::Tensor& row_of) {
  const at::Tensor out = at::empty({row_of.size(0), y.size(1)}, y.options());
  with_type(y, "expert_rows", [&]<class T>(T) {
    add_up(row_of.size(0), row_of.size(1), y.size(1), row_of.const_data_ptr<std::int64_t>(),
           gates.defined() ? gates.const_data_ptr<T>() : nullptr, y.const_data_ptr<T>(),
           out.mutable_data_ptr<T>());
  });
  return out;
}

}  // namespace

ExpertRows sort_by_expert(const at::Tensor& experts, std::int64_t all_experts,
                          const at::Tensor& kept) {
  const at::Tensor chosen = experts.contiguous();
  const std::int64_t tokens = chosen.size(0);
  const std::int64_t k = chosen.size(1);
  const auto* choice = chosen.const_data_ptr<std::int64_t>();
  const at::Tensor taken = kept.defined() ? kept.contiguous() : kept;
  const bool* has_row = taken.defined() ? taken.const_data_ptr<bool>() : nullptr;
  ExpertRows rows;
  rows.counts.assign(static_cast<std::size_t>(all_experts), 0);
  for (std::int64_t i = 0; i < tokens * k; ++i)
    if (!has_row || has_row[i]) ++rows.counts[static_cast<std::size_t>(choice[i])];
  std::vector<std::int64_t> next(rows.counts.size(), 0);
  for (std::size_t e = 1; e < next.size(); ++e) next[e] = next[e - 1] + rows.counts[e - 1];
  const std::int64_t all = next.empty() ? 0 : next.back() + rows.counts.back();
  rows.row_of = at::empty({tokens, k}, at::kLong);
  rows.token_of = at::empty({all}, at::kLong);
  auto* row_of = rows.row_of.mutable_data_ptr<std::int64_t>();
  auto* token_of = rows.token_of.mutable_data_ptr<std::int64_t>();
  // A counting sort keeps the order of tokens within an expert.
  for (std::int64_t i = 0; i < tokens * k; ++i) {
    row_of[i] = -1;
    if (has_row && !has_row[i]) continue;
    row_of[i] = next[static_cast<std::size_t>(choice[i])]++;
    token_of[row_of[i]] = i / k;
  }
  return rows;
}

at::Tensor take_rows(const at::Tensor& x, const ExpertRows& rows) {
  SHOAL_USER_CHECK(x.dim() == 2 && x.size(0) == rows.row_of.size(0), "take_rows",
                   "{} choices of tokens for an input of {} elements", rows.row_of.size(0),
                   x.numel());
  return differentiable("take_rows", {x}, [&](const Wanted&) {
    return Recorded{{x.index_select(0, rows.token_of)},
                    {rows.row_of},
                    [](const Tensors& saved, const Tensors& gradients) {
                      return Tensors{sum_of_rows(gradients[0].contiguous(), {}, saved[0])};
                    }};
  })[0];
}

at::Tensor combine_rows(const at::Tensor& y, const at::Tensor& gates, const ExpertRows& rows) {
  SHOAL_USER_CHECK(y.dim() == 2 && y.size(0) == rows.rows() &&
                       gates.sizes() == rows.row_of.sizes() &&
                       gates.scalar_type() == y.scalar_type(),
                   "combine_rows", "{} rows and {} gates for {} rows and {} choices", y.size(0),
                   gates.numel(), rows.rows(), rows.row_of.numel());
  return differentiable("combine_rows", {y, gates}, [&](const Wanted& wanted) {
    const at::Tensor values = y.contiguous();
    const at::Tensor factors = gates.contiguous();
    return Recorded{{sum_of_rows(values, factors, rows.row_of)},
                    {values, factors, rows.row_of},
                    [wanted](const Tensors& saved, const Tensors& gradients) {
                      const at::Tensor dy = gradients[0].contiguous();
                      const at::Tensor& row_of = saved[2];
                      Tensors result(2);
                      if (wanted.input[0]) result[0] = at::empty_like(saved[0]);
                      if (wanted.input[1]) result[1] = at::empty_like(saved[1]);
                      with_type(dy, "combine_rows", [&]<class T>(T) {
                        combine_backward(
                            row_of.size(0), row_of.size(1), dy.size(1),
                            row_of.const_data_ptr<std::int64_t>(), saved[1].const_data_ptr<T>(),
                            saved[0].const_data_ptr<T>(), dy.const_data_ptr<T>(),
                            result[0].defined() ? result[0].mutable_data_ptr<T>() : nullptr,
                            result[1].defined() ? result[1].mutable_data_ptr<T>() : nullptr);
                      });
                      return result;
                    }};
  })[0];
}

}  // namespace shoal::ops
