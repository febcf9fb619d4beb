#include "shoal/ops/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "shoal/base/check.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/kernel_input.h"
#include "shoal/ops/random_kernels.h"

namespace shoal::ops {
namespace {

struct Mask {
  Key key;
  // of 65536: an element is dropped when its draw of 16 bits is below
  std::uint32_t threshold;
  RowPlace place;

  // 1 / (1 - p) for the p that is really drawn, not for the one asked for: the expected value is
  // exact.
  double scale() const { return 65536.0 / (65536.0 - threshold); }

  /// Calls `row(sample, position, index)` for every row of a tensor [B, T, D] or [B, D].
  void rows(const at::Tensor& x,
            const std::function<void(std::uint64_t, std::uint32_t, std::int64_t)>& row) const {
    const std::int64_t columns = x.dim() > 2 ? x.size(1) : 1;
    const std::int64_t samples = x.dim() > 1 ? x.size(0) : 1;
    const std::int64_t* sample =
        place.samples.defined() ? place.samples.const_data_ptr<std::int64_t>() : nullptr;
    const std::int64_t* position =
        place.positions.defined() ? place.positions.const_data_ptr<std::int64_t>() : nullptr;
    for (std::int64_t b = 0; b < samples; ++b) {
      for (std::int64_t t = 0; t < columns; ++t) {
        // The counters of a row: where it lies in the global batch, not in this tensor.
        row(sample ? sample[b] : b,
            static_cast<std::uint32_t>(position ? position[t] : place.position_begin + t),
            b * columns + t);
      }
    }
  }

  at::Tensor apply(const at::Tensor& x, const at::Tensor& residual) const {
    // Other types and devices: the fp32 kernel draws the mask from ones, so that all of them drop
    // the same elements.
    if (!is_fp32_on_cpu(x)) {
      const at::Tensor kept = x * factors(x);
      return residual.defined() ? residual + kept : kept;
    }
    const at::Tensor y = at::empty_like(x);
    const std::int64_t width = x.size(-1);
    const float* from = x.const_data_ptr<float>();
    const float* base = pointer(residual);
    float* to = y.mutable_data_ptr<float>();
    // Row by row, as each has counters of its own.
    rows(x, [&](std::uint64_t sample, std::uint32_t position, std::int64_t index) {
      kernels::dropout_row(key.value(), sample, position, threshold, static_cast<float>(scale()),
                           width, from + index * width, base ? base + index * width : nullptr,
                           to + index * width);
    });
    return y;
  }

 private:
  /// Returns the factor of every element, in the type of `x` and where it lies.
  at::Tensor factors(const at::Tensor& x) const {
    const at::Tensor drawn = Mask(*this).apply(at::ones(x.sizes(), at::kFloat), {});
    return (drawn > 0).to(x.options().requires_grad(false)) * scale();
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& input, double probability, Key key, const RowPlace& place,
                   const at::Tensor& residual) {
  SHOAL_USER_CHECK(probability >= 0 && probability < 1, "dropout", "probability {}", probability);
  SHOAL_USER_CHECK(input.dim() == 2 || input.dim() == 3, "dropout",
                   "takes [B, T, D] or [B, D], not {} dimensions", input.dim());
  const Mask mask{
      // At most 65535: the scale stays finite.
      key, static_cast<std::uint32_t>(std::min(std::lround(probability * 65536), 65535L)), place};
  return differentiable("dropout", {input, residual}, [&](const Wanted& wanted) {
    return Recorded{
        {mask.apply(input.contiguous(), residual.defined() ? residual.contiguous() : residual)},
        {},
        [mask, wanted](const Tensors&, const Tensors& gradients) {
          // The mask is drawn again: d_x = mask scale dy, and the residual passes dy on.
          return Tensors{wanted.input[0] ? mask.apply(gradients[0].contiguous(), {}) : at::Tensor(),
                         gradients[0]};
        }};
  })[0];
}

}  // namespace shoal::ops
