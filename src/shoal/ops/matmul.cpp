#include "shoal/ops/matmul.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/ops/gemm_kernels.h"

namespace shoal::ops {
namespace {

bool fits_kernel(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat && tensor.device().is_cpu(); }

kernels::MatrixView view(const at::Tensor& tensor) { return {tensor.const_data_ptr<float>(), tensor.stride(0), tensor.stride(1)}; }

/// Below this many multiplications threads cost more than they save.
constexpr std::int64_t kWorthThreads = 1 << 20;

void by_kernel(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  const std::int64_t rows = c.size(0), columns = c.size(1), depth = a.size(1), stride = c.stride(0);
  const kernels::MatrixView left = view(a), right = view(b);
  float* out = c.mutable_data_ptr<float>();
  const auto part = [&](std::int64_t i, std::int64_t height, std::int64_t j, std::int64_t width) {
    const at::Tensor workspace = at::empty({static_cast<std::int64_t>(kernels::gemm_workspace(height, width, depth))}, at::kFloat);
    kernels::gemm(height, width, depth, {left.data + i * left.row_stride, left.row_stride, left.column_stride},
                  {right.data + j * right.column_stride, right.row_stride, right.column_stride}, out + i * stride + j, stride, accumulate,
                  workspace.mutable_data_ptr<float>());
  };
  const std::int64_t threads = rows * columns * depth < kWorthThreads ? 1 : at::get_num_threads();
  const std::int64_t longer = std::max(rows, columns), share = std::max<std::int64_t>(64, (longer / threads + 63) / 64 * 64);
  if (threads == 1 || share >= longer) return part(0, rows, 0, columns);
  at::parallel_for(0, (longer + share - 1) / share, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t from = begin * share, count = std::min(longer, end * share) - from;
    rows >= columns ? part(from, count, 0, columns) : part(0, rows, from, count);
  });
}

}  // namespace

void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  SHOAL_CHECK(a.dim() == 2 && b.dim() == 2 && c.dim() == 2 && a.size(1) == b.size(0) && c.size(0) == a.size(0) && c.size(1) == b.size(1),
              "product of matrices whose sizes do not fit");
  if (kernels::gemm_preferred() && fits_kernel(a) && fits_kernel(b) && fits_kernel(c) && c.stride(1) == 1 && a.size(1) > 0) {
    by_kernel(c, a, b, accumulate);
  } else if (accumulate) {
    c.addmm_(a, b);
  } else {
    at::Tensor out = c;
    at::mm_out(out, a, b);
  }
}

}  // namespace shoal::ops
