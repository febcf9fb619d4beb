#include "shoal/ops/matmul.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/base/span_recorder.h"
#include "shoal/comm/group.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/gemm_kernels.h"
#include "shoal/ops/narrow_kernels.h"

namespace shoal::ops {
namespace {

kernels::MatrixView view(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1),
          comm::element_type(tensor.scalar_type())};
}

/// Below this many multiplications threads cost more than they save.
constexpr std::int64_t kWorthThreads = 1 << 20;

void by_kernel(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  const std::int64_t rows = c.size(0);
  const std::int64_t columns = c.size(1);
  const std::int64_t depth = a.size(1);
  const std::int64_t stride = c.stride(0);
  const kernels::MatrixView left = view(a);
  const kernels::MatrixView right = view(b);
  float* out = c.mutable_data_ptr<float>();
  const auto part = [&](std::int64_t i, std::int64_t height, std::int64_t j, std::int64_t width) {
    const at::Tensor workspace = at::empty(
        {static_cast<std::int64_t>(kernels::gemm_workspace(height, width, depth))}, at::kFloat);
    kernels::gemm(height, width, depth, kernels::from(left, i, 0), kernels::from(right, 0, j),
                  out + i * stride + j, stride, accumulate, workspace.mutable_data_ptr<float>());
  };
  const std::int64_t threads = rows * columns * depth < kWorthThreads ? 1 : at::get_num_threads();
  const std::int64_t longer = std::max(rows, columns);
  const std::int64_t share = std::max<std::int64_t>(64, (longer / threads + 63) / 64 * 64);
  if (threads == 1 || share >= longer) return part(0, rows, 0, columns);
  at::parallel_for(0, (longer + share - 1) / share, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t from = begin * share;
    const std::int64_t count = std::min(longer, end * share) - from;
    rows >= columns ? part(from, count, 0, columns) : part(0, rows, from, count);
  });
}

/// Elements of a 16-bit result that exist in float32 at a time. Each block packs `b` anew, so
/// blocks are high.
constexpr std::int64_t kWideElements = 1 << 21;

/// The sums are float32 and rounded once.
void into_narrow(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  const std::int64_t height = std::clamp<std::int64_t>(kWideElements / c.size(1), 96, 1536);
  for (std::int64_t begin = 0; begin < c.size(0); begin += height) {
    const std::int64_t rows = std::min(height, c.size(0) - begin);
    const at::Tensor place = c.narrow(0, begin, rows);
    const at::Tensor wide =
        accumulate ? converted(place, at::kFloat) : at::empty({rows, c.size(1)}, at::kFloat);
    by_kernel(wide, a.narrow(0, begin, rows), b, accumulate);
    const ElementType type = comm::element_type(c.scalar_type());
    const std::int64_t width = c.size(1);
    const std::int64_t stride = c.stride(0);
    auto* out = static_cast<std::uint16_t*>(place.mutable_data_ptr());
    const float* sums = wide.const_data_ptr<float>();
    at::parallel_for(0, rows, 16, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t row = first; row < end; ++row) {
        kernels::narrow(type, sums + row * width, static_cast<std::size_t>(width),
                        out + row * stride);
      }
    });
  }
}

bool same_type(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type();
}

bool fits_kernel(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  const auto has_type = [](const at::Tensor& x) {
    return x.scalar_type() == at::kFloat || is_narrow(x.scalar_type());
  };
  return c.device().is_cpu() && has_type(a) && same_type(a, b) && has_type(c) && c.stride(1) == 1 &&
         a.size(1) > 0 && c.numel() > 0;
}

}  // namespace

void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  SHOAL_CHECK(a.dim() == 2 && b.dim() == 2 && c.dim() == 2 && a.size(1) == b.size(0) &&
                  c.size(0) == a.size(0) && c.size(1) == b.size(1),
              "product of matrices whose sizes do not fit");
  const ScopedSpan span(SpanKind::kMatmul, "matmul");
  if (span.recorded()) {
    const double mn = static_cast<double>(c.numel());
    const double written = static_cast<double>(c.nbytes()) * (accumulate ? 2 : 1);
    span.work(2 * mn * static_cast<double>(a.size(1)),
              static_cast<double>(a.nbytes() + b.nbytes()) + written);
    span.at(c.size(0), c.size(1), a.size(1));
  }
  if (fits_kernel(c, a, b)) {
    is_narrow(c.scalar_type()) ? into_narrow(c, a, b, accumulate) : by_kernel(c, a, b, accumulate);
  } else if (!same_type(c, a)) {
    // A device adds up 16-bit products in float32 as the kernels do; other types are rounded once.
    const bool wide = !c.is_cpu() && is_narrow(a.scalar_type()) && c.scalar_type() == at::kFloat;
    const at::Tensor product = wide ? at::mm(a, b, at::kFloat) : a.matmul(b);
    accumulate ? c.add_(product) : c.copy_(product);
  } else if (accumulate) {
    c.addmm_(a, b);
  } else {
    at::Tensor out = c;
    at::mm_out(out, a, b);
  }
}

}  // namespace shoal::ops
