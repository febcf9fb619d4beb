#include "shoal/ops/random_fill.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "shoal/base/check.h"
#include "shoal/ops/kernel_input.h"
#include "shoal/ops/random_kernels.h"

namespace shoal::ops {
namespace {

/// Calls `run(global index, local index, count)` for each run of elements that is contiguous in the
/// global tensor.
template <class Run>
void for_runs(at::IntArrayRef local, const std::vector<std::int64_t>& global,
              const std::vector<std::int64_t>& begin, Run&& run) {
  // Trailing dimensions that the box holds whole, and the one before them, are one run: the kernels
  // draw long runs fastest.
  std::size_t split = local.size();  // dimensions from here on are whole
  std::int64_t length = 1;
  while (split > 0 && local[split - 1] == global[split - 1]) length *= local[--split];
  if (split > 0) length *= local[--split];
  std::int64_t runs = 1;
  for (std::size_t d = 0; d < split; ++d) runs *= local[d];
  for (std::int64_t r = 0; r < runs; ++r) {
    // The r-th run, in mixed radix over the dimensions that are cut: its first element's index in
    // the whole tensor.
    std::int64_t rest = r;
    std::int64_t index = 0;
    std::int64_t stride = 1;
    for (std::size_t d = local.size(); d-- > 0; stride *= global[d]) {
      index += begin[d] * stride;
      if (d < split) index += rest % local[d] * stride, rest /= local[d];
    }
    if (length > 0) run(index, r * length, length);
  }
}

}  // namespace

void fill_box(const at::Tensor& box, const std::vector<std::int64_t>& global_shape,
              const std::vector<std::int64_t>& begin, model::Init init, double scale, Key key) {
  SHOAL_USER_CHECK(
      box.is_contiguous() && box.dim() == static_cast<std::int64_t>(global_shape.size()),
      "fill_box", "box of {} dimensions for {}", box.dim(), global_shape.size());
  if (init == model::Init::kZeros || init == model::Init::kOnes) {
    box.fill_(init == model::Init::kOnes ? 1 : 0);
    return;
  }
  // 16-bit weights are the fp32 values rounded: a run in bf16 starts from the same model. So does
  // one on another device, which gets what the CPU has drawn.
  const bool direct = is_fp32_on_cpu(box);
  const at::Tensor values = direct ? box : at::empty(box.sizes(), at::kFloat);
  float* out = values.mutable_data_ptr<float>();
  for_runs(
      box.sizes(), global_shape, begin,
      [&](std::int64_t global, std::int64_t local, std::int64_t count) {
        // Element i of the whole tensor is draw i of the key's stream, so a shard gets what the
        // whole would have had.
        if (init == model::Init::kNormal) {
          kernels::fill_normal(key.value(), global, count, static_cast<float>(scale), out + local);
        } else {
          kernels::fill_uniform(key.value(), global, count, static_cast<float>(scale), out + local);
        }
      });
  if (!direct) box.copy_(values);
}

}  // namespace shoal::ops
