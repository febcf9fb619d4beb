#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/base/element_type.h"

namespace shoal::ops::kernels {

/// A view of a matrix: element (i, j) lies at data[i * row_stride + j * column_stride], counted in
/// elements.
struct MatrixView {
  const void* data;
  std::int64_t row_stride, column_stride;
  ElementType type = ElementType::kF32;  ///< f32, bf16 or f16
};

/// Returns the view whose element (0, 0) is element (i, j) of `view`.
inline MatrixView from(MatrixView view, std::int64_t i, std::int64_t j) {
  const std::int64_t element = i * view.row_stride + j * view.column_stride;
  view.data =
      static_cast<const char*>(view.data) + element * static_cast<std::int64_t>(size_of(view.type));
  return view;
}

/// Computes c [rows, columns] (row stride `c_stride`, columns contiguous) = a [rows, depth] times b
/// [depth, columns], plus c when `accumulate`. c and all sums are fp32; a and b are stored in one
/// type, which may be another.
///
/// It is blocked and packed as in Goto and van de Geijn, "Anatomy of high-performance matrix
/// multiplication", 2008. The order in which an element is summed depends on `depth` alone: any cut
/// of rows and columns gives the same bits, wherever the matrices lie, and AVX2 the same as
/// AVX-512. 16-bit elements become fp32 as they are packed, unless the processor multiplies bf16
/// itself (bf16_products). `workspace`: gemm_workspace(...) floats, aligned to 64 bytes.
void gemm(std::int64_t rows, std::int64_t columns, std::int64_t depth, MatrixView a, MatrixView b,
          float* c, std::int64_t c_stride, bool accumulate, float* workspace);
std::size_t gemm_workspace(std::int64_t rows, std::int64_t columns, std::int64_t depth);

/// Returns true where the processor adds up products of pairs of bf16 (AVX512-BF16); gemm then uses
/// it.
bool bf16_products();

/// Computes gemm there, for bf16 `a` and `b`. Two consecutive numbers along the depth form one
/// word; subnormal factors count as zero, and sums round to nearest.
void gemm_bf16(std::int64_t rows, std::int64_t columns, std::int64_t depth, MatrixView a,
               MatrixView b, float* c, std::int64_t c_stride, bool accumulate, float* workspace);
std::size_t gemm_bf16_workspace(std::int64_t rows, std::int64_t columns, std::int64_t depth);

}  // namespace shoal::ops::kernels
