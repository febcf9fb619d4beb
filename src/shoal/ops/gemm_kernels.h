#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::ops::kernels {

/// A matrix of fp32 in place: element (i, j) at data[i * row_stride + j * column_stride].
struct MatrixView {
  const float* data;
  std::int64_t row_stride, column_stride;
};

/// c [rows, columns] (row stride `c_stride`, columns contiguous) = a [rows, depth] times b [depth, columns], plus c when `accumulate`.
///
/// Blocked and packed as in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008. The order in which an element is summed
/// depends on `depth` alone: any cut of rows and columns gives the same bits. `workspace`: gemm_workspace(...) floats, aligned to 64 bytes.
void gemm(std::int64_t rows, std::int64_t columns, std::int64_t depth, MatrixView a, MatrixView b, float* c, std::int64_t c_stride, bool accumulate,
          float* workspace);
std::size_t gemm_workspace(std::int64_t rows, std::int64_t columns, std::int64_t depth);

/// True where `gemm` is known to beat the BLAS in LibTorch: processors with AVX-512 on which MKL, by their maker's name, stays with AVX2.
bool gemm_preferred();

}  // namespace shoal::ops::kernels
