#include "shoal/ops/gemm_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/ops/gemm_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/ops/narrow_kernels.h"
#include "shoal/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::ops {
namespace HWY_NAMESPACE {

using kernels::MatrixView;

// The tile that stays in registers: kTileRows rows of two vectors. Of 32 registers 24 hold sums, of
// 16 registers 12; two more hold a row of b and one an element of a.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr std::int64_t kTileRows = 12;
#else
constexpr std::int64_t kTileRows = 6;
#endif
// A panel of b (depth x two vectors, 32 or 64 KiB) is packed, and used by all panels of a, which
// come from the second or third cache.
constexpr std::int64_t kBlockDepth = 512, kBlockRows = 1536;

constexpr std::int64_t kWidestTile = 64;

MatrixView transposed(MatrixView view) {
  std::swap(view.row_stride, view.column_stride);
  return view;
}

std::int64_t tile_columns() { return 2 * static_cast<std::int64_t>(hn::Lanes(Floats())); }
std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Depth of a block: as even as possible.
std::int64_t block_depth(std::int64_t depth) {
  const std::int64_t blocks = (depth + kBlockDepth - 1) / kBlockDepth;
  return (depth + blocks - 1) / std::max<std::int64_t>(blocks, 1);
}

#if HWY_TARGET != HWY_SCALAR
/// to[k * width + i] = from[i * stride + k] for 4 x 4 elements.
HWY_INLINE void transpose_4x4(const float* from, std::int64_t stride, float* to,
                              std::int64_t width) {
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> wide;
  const auto r0 = hn::LoadU(d, from);
  const auto r1 = hn::LoadU(d, from + stride);
  const auto r2 = hn::LoadU(d, from + 2 * stride);
  const auto r3 = hn::LoadU(d, from + 3 * stride);
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, to + width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, to + 2 * width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, to + 3 * width);
}

/// The same for 2 x 4 elements.
HWY_INLINE void transpose_2x4(const float* from, std::int64_t stride, float* to,
                              std::int64_t width) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<float, 2> half;
  const auto r0 = hn::LoadU(d, from);
  const auto r1 = hn::LoadU(d, from + stride);
  const auto low = hn::InterleaveLower(d, r0, r1);
  const auto high = hn::InterleaveUpper(d, r0, r1);
  hn::StoreU(hn::LowerHalf(half, low), half, to);
  hn::StoreU(hn::UpperHalf(half, low), half, to + width);
  hn::StoreU(hn::LowerHalf(half, high), half, to + 2 * width);
  hn::StoreU(hn::UpperHalf(half, high), half, to + 3 * width);
}
#endif

/// Copies a row of a panel. Both widths are known to the compiler: no call of memcpy.
HWY_INLINE void copy_row(const float* HWY_RESTRICT from, float* HWY_RESTRICT to,
                         std::int64_t width) {
  if (width == kTileRows) {
    std::memcpy(to, from, kTileRows * sizeof(float));
  } else {
    const Floats d;
    hn::StoreU(hn::LoadU(d, from), d, to);
    hn::StoreU(hn::LoadU(d, from + hn::Lanes(d)), d, to + hn::Lanes(d));
  }
}

/// Panels whose elements lie side by side in `from`. A row of `from` is a page of its own: some
/// panels at a time take what they need of it.
void pack_side_by_side(const float* from, std::int64_t depth_stride, std::int64_t count,
                       std::int64_t width, std::int64_t depth, float* to) {
  constexpr std::int64_t kPanels = 16;
  for (std::int64_t first = 0; first < count; first += kPanels * width) {
    const std::int64_t end = std::min(first + kPanels * width, count);
    for (std::int64_t k = 0; k < depth; ++k) {
      const float* row = from + k * depth_stride;
      float* place = to + first * depth + k * width;
      std::int64_t i = first;
      for (; i + width <= end; i += width, place += width * depth) copy_row(row + i, place, width);
      if (i == end) continue;
      std::copy(row + i, row + end, place);
      std::fill(place + end - i, place + width, 0.0f);
    }
  }
}

/// One panel: to[k * width + i] = element (i, k) for i < count, zero for the rest of the width.
void pack_panel(const float* from, std::int64_t stride, std::int64_t depth_stride,
                std::int64_t count, std::int64_t width, std::int64_t depth, float* to) {
  std::int64_t done = 0;
#if HWY_TARGET != HWY_SCALAR
  if (count == width && depth_stride == 1 && width % 2 == 0) {
    done = depth - depth % 4;
    // A cache line of a row is used whole before the next row comes: rows that lie a multiple of
    // 4 KiB apart share a set of the first cache, which holds no panel of them.
    constexpr std::int64_t kLine = 16;
    for (std::int64_t line = 0; line < done; line += kLine) {
      const std::int64_t end = std::min(line + kLine, done);
      for (std::int64_t i = 0; i < width; i += 4) {
        const float* row = from + i * stride;
        for (std::int64_t k = line; k < end; k += 4) {
          if (i + 4 <= width) {
            transpose_4x4(row + k, stride, to + k * width + i, width);
          } else {
            transpose_2x4(row + k, stride, to + k * width + i, width);
          }
        }
      }
    }
  }
#endif
  for (std::int64_t k = done; k < depth; ++k) {
    for (std::int64_t i = 0; i < count; ++i)
      to[k * width + i] = from[i * stride + k * depth_stride];
    std::fill(to + k * width + count, to + (k + 1) * width, 0.0f);
  }
}

/// Panels of 16-bit rows that lie side by side: what is neighbours in memory becomes float at once.
void pack_narrow_side_by_side(MatrixView from, std::int64_t count, std::int64_t width,
                              std::int64_t depth, float* to) {
  HWY_ALIGN float wide[kBlockRows];
  for (std::int64_t k = 0; k < depth; ++k) {
    kernels::widen(from.type, kernels::from(from, 0, k).data, static_cast<std::size_t>(count),
                   wide);
    for (std::int64_t i = 0; i < count; i += width) {
      float* place = to + i * depth + k * width;
      const std::int64_t size = std::min(width, count - i);
      std::copy(wide + i, wide + i + size, place);
      std::fill(place + size, place + width, 0.0f);
    }
  }
}

/// A panel of other 16-bit elements.
void pack_narrow_panel(MatrixView from, std::int64_t count, std::int64_t width, std::int64_t depth,
                       float* to) {
  HWY_ALIGN float wide[kWidestTile * kBlockDepth];
  for (std::int64_t i = 0; i < count; ++i) {
    if (from.column_stride == 1) {
      kernels::widen(from.type, kernels::from(from, i, 0).data, static_cast<std::size_t>(depth),
                     wide + i * depth);
    } else {
      for (std::int64_t k = 0; k < depth; ++k)
        kernels::widen(from.type, kernels::from(from, i, k).data, 1, wide + i * depth + k);
    }
  }
  pack_panel(wide, depth, 1, count, width, depth, to);
}

/// All panels of a block of `count` rows of `from`.
void pack(MatrixView from, std::int64_t count, std::int64_t width, std::int64_t depth, float* to) {
  if (from.type != ElementType::kF32 && from.row_stride == 1)
    return pack_narrow_side_by_side(from, count, width, depth, to);
  if (from.row_stride == 1) {
    return pack_side_by_side(static_cast<const float*>(from.data), from.column_stride, count, width,
                             depth, to);
  }
  for (std::int64_t i = 0; i < count; i += width, to += width * depth) {
    const MatrixView panel = kernels::from(from, i, 0);
    const std::int64_t size = std::min(width, count - i);
    if (from.type == ElementType::kF32) {
      pack_panel(static_cast<const float*>(panel.data), from.row_stride, from.column_stride, size,
                 width, depth, to);
    } else {
      pack_narrow_panel(panel, size, width, depth, to);
    }
  }
}

/// The cache lines of the panel of b that is packed next. They come to the second cache while tiles
/// are computed, which wait for no memory: packing would wait for each.
class NextPanel {
 public:
  NextPanel() = default;
  NextPanel(MatrixView from, std::int64_t count, std::int64_t depth) {
    const auto size = static_cast<std::int64_t>(size_of(from.type));
    // Rows of memory, which hold the panel's columns or its depth.
    const bool along_depth = from.column_stride == 1;
    row_ = static_cast<const char*>(from.data);
    row_bytes_ = (along_depth ? from.row_stride : from.column_stride) * size;
    lines_ = ((along_depth ? depth : count) * size + kLineBytes - 1) / kLineBytes;
    left_ = (along_depth ? count : depth) * lines_;
  }
  std::int64_t left() const { return left_; }
  HWY_INLINE void fetch(std::int64_t lines) {
    for (lines = std::min(lines, left_), left_ -= lines; lines > 0; --lines) {
      __builtin_prefetch(row_ + line_ * kLineBytes, 0, 2);
      if (++line_ < lines_) continue;
      line_ = 0;
      row_ += row_bytes_;
    }
  }

 private:
  static constexpr std::int64_t kLineBytes = 64;

  const char* row_ = nullptr;
  std::int64_t row_bytes_ = 0;
  std::int64_t lines_ = 0;  ///< in a row
  std::int64_t line_ = 0;
  std::int64_t left_ = 0;
};

/// Rows of b between which lines of the next panel are asked for.
constexpr std::int64_t kFetchEvery = 16;

/// The first kRows rows of one tile of c from a panel of each. Asks for `lines` of the next panel
/// now and again.
template <std::int64_t kRows>
HWY_INLINE void tile(std::int64_t depth, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                     float* HWY_RESTRICT c, std::int64_t stride, bool accumulate, NextPanel& next,
                     std::int64_t lines) {
  const Floats d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  // The tile of c is far away and wanted when all is summed: it comes meanwhile.
  for (std::int64_t i = 0; i < kRows; ++i) {
    hwy::Prefetch(c + i * stride);
    hwy::Prefetch(c + i * stride + 2 * lanes - 1);
  }
  Vector left[kRows];
  Vector right[kRows];
#pragma GCC unroll 12
  for (std::int64_t i = 0; i < kRows; ++i) left[i] = hn::Zero(d), right[i] = hn::Zero(d);
  for (std::int64_t done = 0; done < depth; done += kFetchEvery) {
    next.fetch(lines);
    const std::int64_t end = std::min(done + kFetchEvery, depth);
    for (std::int64_t k = done; k < end; ++k, a += kTileRows, b += 2 * lanes) {
      const Vector b0 = hn::LoadU(d, b);
      const Vector b1 = hn::LoadU(d, b + lanes);
#pragma GCC unroll 12
      for (std::int64_t i = 0; i < kRows; ++i) {
        const Vector factor = hn::Set(d, a[i]);
        left[i] = hn::MulAdd(factor, b0, left[i]);
        right[i] = hn::MulAdd(factor, b1, right[i]);
      }
    }
  }
#pragma GCC unroll 12
  for (std::int64_t i = 0; i < kRows; ++i) {
    float* row = c + i * stride;
    hn::StoreU(accumulate ? hn::Add(left[i], hn::LoadU(d, row)) : left[i], d, row);
    hn::StoreU(accumulate ? hn::Add(right[i], hn::LoadU(d, row + lanes)) : right[i], d,
               row + lanes);
  }
}

/// A tile of as many rows as the last panel of many batches has (4 of 64, 8 of 128), which costs
/// less than a whole one. Returns false, and does nothing, for an odd number.
HWY_INLINE bool low_tile(std::int64_t rows, std::int64_t depth, const float* a, const float* b,
                         float* c, std::int64_t stride, bool accumulate, NextPanel& next,
                         std::int64_t lines) {
  switch (rows) {
    case 2:
      tile<2>(depth, a, b, c, stride, accumulate, next, lines);
      return true;
    case 4:
      tile<4>(depth, a, b, c, stride, accumulate, next, lines);
      return true;
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
    case 6:
      tile<6>(depth, a, b, c, stride, accumulate, next, lines);
      return true;
    case 8:
      tile<8>(depth, a, b, c, stride, accumulate, next, lines);
      return true;
    case 10:
      tile<10>(depth, a, b, c, stride, accumulate, next, lines);
      return true;
#endif
    default:
      return false;
  }
}

/// A tile of which only [rows, columns] lie inside c.
void edge_tile(std::int64_t depth, const float* a, const float* b, float* c, std::int64_t stride,
               bool accumulate, std::int64_t rows, std::int64_t columns) {
  HWY_ALIGN float whole[kTileRows * kWidestTile];
  NextPanel none;
  tile<kTileRows>(depth, a, b, whole, tile_columns(), false, none, 0);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j)
      c[i * stride + j] = whole[i * tile_columns() + j] + (accumulate ? c[i * stride + j] : 0);
  }
}

/// A packed block of a times a packed panel of b.
void panel(std::int64_t rows, std::int64_t wide, std::int64_t depth, const float* a, const float* b,
           float* c, std::int64_t stride, bool accumulate, NextPanel next) {
  const std::int64_t stops =
      (rows + kTileRows - 1) / kTileRows * ((depth + kFetchEvery - 1) / kFetchEvery);
  const std::int64_t lines = (next.left() + stops - 1) / stops;
  for (std::int64_t i = 0; i < rows; i += kTileRows) {
    const float* panel_a = a + i * depth;
    float* const corner = c + i * stride;
    const std::int64_t high = std::min(kTileRows, rows - i);
    const bool whole = wide == tile_columns();
    if (whole && high == kTileRows) {
      tile<kTileRows>(depth, panel_a, b, corner, stride, accumulate, next, lines);
    } else if (!whole ||
               !low_tile(high, depth, panel_a, b, corner, stride, accumulate, next, lines)) {
      edge_tile(depth, panel_a, b, corner, stride, accumulate, high, wide);
    }
  }
}

std::size_t GemmWorkspace(std::int64_t rows, std::int64_t depth) {
  const std::int64_t a = round_up(std::min(rows, kBlockRows), kTileRows);
  return static_cast<std::size_t>(round_up(a * block_depth(depth), 16) +
                                  tile_columns() * block_depth(depth));
}

void Gemm(std::int64_t rows, std::int64_t columns, std::int64_t depth, MatrixView a, MatrixView b,
          float* c, std::int64_t c_stride, bool accumulate, float* workspace) {
  const std::int64_t step = block_depth(depth);
  const std::int64_t width = tile_columns();
  float* packed_a = workspace;
  float* packed_b =
      workspace + round_up(round_up(std::min(rows, kBlockRows), kTileRows) * step, 16);
  for (std::int64_t k = 0; k < depth; k += step) {
    const std::int64_t deep = std::min(step, depth - k);
    for (std::int64_t i = 0; i < rows; i += kBlockRows) {
      const std::int64_t high = std::min(kBlockRows, rows - i);
      pack(kernels::from(a, i, k), high, kTileRows, deep, packed_a);
      const auto view = [&](std::int64_t j) { return transposed(kernels::from(b, k, j)); };
      for (std::int64_t j = 0; j < columns; j += width) {
        const std::int64_t after = j + width;
        const std::int64_t wide = std::min(width, columns - j);
        pack(view(j), wide, width, deep, packed_b);
        const NextPanel next = after < columns
                                   ? NextPanel(view(after), std::min(width, columns - after), deep)
                                   : NextPanel();
        panel(high, wide, deep, packed_a, packed_b, c + i * c_stride + j, c_stride,
              accumulate || k > 0, next);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ops {
HWY_EXPORT(Gemm);
HWY_EXPORT(GemmWorkspace);

namespace kernels {

void gemm(std::int64_t rows, std::int64_t columns, std::int64_t depth, MatrixView a, MatrixView b,
          float* c, std::int64_t c_stride, bool accumulate, float* workspace) {
  if (a.type == ElementType::kBF16 && bf16_products())
    return gemm_bf16(rows, columns, depth, a, b, c, c_stride, accumulate, workspace);
  HWY_DYNAMIC_DISPATCH(Gemm)(rows, columns, depth, a, b, c, c_stride, accumulate, workspace);
}

std::size_t gemm_workspace(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  return std::max(HWY_DYNAMIC_DISPATCH(GemmWorkspace)(rows, depth),
                  gemm_bf16_workspace(rows, columns, depth));
}

}  // namespace kernels
}  // namespace shoal::ops
#endif
