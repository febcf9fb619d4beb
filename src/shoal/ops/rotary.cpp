#include "shoal/ops/rotary.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "shoal/base/check.h"
#include "shoal/ops/differentiable.h"

namespace shoal::ops {
namespace {

double stretched(double frequency, const model::RopeScaling& scaling) {
  // Llama 3.1's rule: wave lengths longer than the original context are stretched by the factor,
  // short ones are left, and between the two bounds the frequencies are blended linearly.
  if (scaling.factor == 1) return frequency;
  const double wave = 2 * std::numbers::pi / frequency;
  const double original = static_cast<double>(scaling.original_sequence);
  if (wave < original / scaling.high_frequency) return frequency;
  if (wave > original / scaling.low_frequency) return frequency / scaling.factor;
  const double smooth =
      (original / wave - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

struct Shape {
  std::int64_t batch, columns, groups, heads_per_group, head_size;
};

/// direction 1: by the position's angle; -1: back, which is the gradient. The inner loop
/// vectorises.
template <class T>
void turn(const Shape& shape, const T* from, T* to, const float* table, std::int64_t table_rows,
          const std::int64_t* positions, std::int64_t begin, T direction) {
  const std::int64_t half = shape.head_size / 2;
  // The query heads and the key of a group; the value behind them is not turned.
  const std::int64_t turned = (shape.heads_per_group + 1) * shape.head_size;
  for (std::int64_t row = 0; row < shape.batch * shape.columns; ++row) {
    // Rows are tokens of all samples, one after the other; the position follows from the column.
    const std::int64_t column = row % shape.columns;
    const std::int64_t position = positions ? positions[column] : begin + column;
    // The table is [2, positions, head_size / 2]: all cosines, then all sines.
    const float* cosine = table + position * half;
    const float* sine = table + (table_rows + position) * half;
    for (std::int64_t group = 0; group < shape.groups; ++group) {
      for (std::int64_t head = 0; head < turned; head += shape.head_size) {
        const T* a = from + head;
        const T* b = a + half;
        T* x = to + head;
        T* y = x + half;
        for (std::int64_t i = 0; i < half; ++i) {
          const T c = cosine[i];
          const T s = direction * sine[i];
          const T p = a[i];
          const T q = b[i];
          // (p, q) turned by the angle. With s negated it is turned back: a rotation's gradient is
          // its inverse.
          x[i] = p * c - q * s;
          y[i] = q * c + p * s;
        }
      }
      std::memcpy(to + turned, from + turned, shape.head_size * sizeof(T));
      from += turned + shape.head_size;
      to += turned + shape.head_size;
    }
  }
}

/// The plain path, any floating type and device: `turn` as operators on whole tensors.
at::Tensor plain_turned(const at::Tensor& x, const Shape& shape, const at::Tensor& table,
                        const at::Tensor& positions, std::int64_t begin, int direction) {
  const std::int64_t half = shape.head_size / 2;
  const std::int64_t turned = shape.heads_per_group + 1;
  const at::Tensor rows =  // [2, T, 1, 1, head_size / 2]
      (positions.defined() ? table.index_select(1, positions.to(table.device()))
                           : table.narrow(1, begin, shape.columns))
          .unsqueeze(2)
          .unsqueeze(2);
  const at::Tensor cosine = rows.select(0, 0).to(x.options());
  const at::Tensor sine = rows.select(0, 1).to(x.options()) * direction;
  const auto by_head = [&](const at::Tensor& tensor) {
    return tensor.view({shape.batch, shape.columns, shape.groups, turned + 1, shape.head_size});
  };
  const at::Tensor y = at::empty_like(x);
  const at::Tensor from = by_head(x);
  const at::Tensor to = by_head(y);
  const auto half_of = [&](const at::Tensor& tensor, std::int64_t first) {
    return tensor.narrow(3, 0, turned).narrow(4, first, half);
  };
  const at::Tensor p = half_of(from, 0);
  const at::Tensor q = half_of(from, half);
  half_of(to, 0).copy_(p * cosine - q * sine);
  half_of(to, half).copy_(q * cosine + p * sine);
  to.select(3, turned).copy_(from.select(3, turned));
  return y;
}

at::Tensor turned(const at::Tensor& x, const Shape& shape, const at::Tensor& table,
                  const at::Tensor& positions, std::int64_t begin, int direction) {
  if (!x.is_cpu()) return plain_turned(x, shape, table, positions, begin, direction);
  const at::Tensor y = at::empty_like(x);
  const std::int64_t* position =
      positions.defined() ? positions.const_data_ptr<std::int64_t>() : nullptr;
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rotary", [&] {
    turn<scalar_t>(shape, x.const_data_ptr<scalar_t>(), y.mutable_data_ptr<scalar_t>(),
                   table.const_data_ptr<float>(), table.size(1), position, begin,
                   static_cast<scalar_t>(direction));
  });
  return y;
}

}  // namespace

at::Tensor rotary_table(std::int64_t positions, std::int64_t head_size, double theta,
                        const model::RopeScaling& scaling) {
  const at::Tensor table = at::empty({2, positions, head_size / 2}, at::kFloat);
  float* cosine = table.mutable_data_ptr<float>();
  float* sine = cosine + positions * (head_size / 2);
  for (std::int64_t i = 0; i < head_size / 2; ++i) {
    // Angles in double: position times frequency reaches 10^5 radians, of which a float would keep
    // two decimals.
    const double frequency = stretched(std::pow(theta, -2.0 * i / head_size), scaling);
    for (std::int64_t p = 0; p < positions; ++p) {
      cosine[p * (head_size / 2) + i] = static_cast<float>(std::cos(p * frequency));
      sine[p * (head_size / 2) + i] = static_cast<float>(std::sin(p * frequency));
    }
  }
  return table;
}

at::Tensor rotary(const at::Tensor& input, const at::Tensor& table, std::int64_t heads_per_group,
                  std::int64_t head_size, const at::Tensor& positions,
                  std::int64_t position_begin) {
  SHOAL_USER_CHECK(input.dim() == 3 && head_size % 2 == 0 &&
                       input.size(2) % ((heads_per_group + 2) * head_size) == 0,
                   "rotary",
                   "input must be [B, T, groups * ({} + 2) * {}], its last dimension is {}",
                   heads_per_group, head_size, input.size(-1));
  const Shape shape{input.size(0), input.size(1),
                    input.size(2) / ((heads_per_group + 2) * head_size), heads_per_group,
                    head_size};
  // Beyond the table lies foreign memory.
  const std::int64_t last = positions.defined()
                                ? (positions.numel() ? positions.max().item<std::int64_t>() : 0)
                                : position_begin + shape.columns - 1;
  SHOAL_USER_CHECK(last < table.size(1), "rotary", "position {} is beyond the table's {}", last,
                   table.size(1));
  return differentiable("rotary", {input}, [&](const Wanted&) {
    return Recorded{
        {turned(input.contiguous(), shape, table, positions, position_begin, 1)},
        {},
        [shape, table, positions, position_begin](const Tensors&, const Tensors& gradients) {
          return Tensors{
              turned(gradients[0].contiguous(), shape, table, positions, position_begin, -1)};
        }};
  })[0];
}

}  // namespace shoal::ops
