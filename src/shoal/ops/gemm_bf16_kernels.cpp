#include "shoal/ops/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "shoal/base/check.h"
#include "shoal/base/instruction_sets.h"

namespace shoal::ops::kernels {

#if defined(__x86_64__)
// Highway knows no instruction of AVX512-BF16, so this file does. Chosen at run time: nothing here
// runs on a processor without it.
#define SHOAL_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

namespace {

// As in gemm_kernels.cpp, with a word of two neighbours along the depth in the place of a float: 24
// sums stay in registers.
constexpr std::int64_t kTileRows = 12, kTileColumns = 32;
constexpr std::int64_t kBlockWords = 512, kBlockColumns = 320, kBlockRows = 1536;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
std::int64_t words_of(std::int64_t depth) { return (depth + 1) / 2; }

/// Words of a block: as even as possible.
std::int64_t block_words(std::int64_t depth) {
  const std::int64_t words = words_of(depth);
  // Even blocks: a depth just above one block would otherwise end in a block of a few words.
  const std::int64_t blocks = (words + kBlockWords - 1) / kBlockWords;
  return (words + blocks - 1) / std::max<std::int64_t>(blocks, 1);
}

const std::uint16_t* bits(const MatrixView& view) {
  return static_cast<const std::uint16_t*>(view.data);
}

// Two neighbours along the depth: the earlier one in the lower half, as the instruction expects. An
// odd depth ends with a zero.
std::uint32_t word(const std::uint16_t* first, std::int64_t stride, bool pair) {
  return *first | (pair ? static_cast<std::uint32_t>(first[stride]) << 16 : 0);
}

SHOAL_AVX512_BF16 inline __m128i four_words(const std::uint16_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
SHOAL_AVX512_BF16 inline void put(std::uint32_t* to, __m128i words) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
}

/// to[w * width + i] = the two neighbours 2 w, 2 w + 1 of row i, for 4 rows and 4 words, depth
/// contiguous.
SHOAL_AVX512_BF16 inline void transpose_4x4(const std::uint16_t* from, std::int64_t stride,
                                            std::uint32_t* to, std::int64_t width) {
  const __m128i r0 = four_words(from);
  const __m128i r1 = four_words(from + stride);
  const __m128i r2 = four_words(from + 2 * stride);
  const __m128i r3 = four_words(from + 3 * stride);
  // Two rounds of interleaving, first words of 32 bits and then of 64: the usual transposition of 4
  // x 4.
  const __m128i low01 = _mm_unpacklo_epi32(r0, r1);
  const __m128i high01 = _mm_unpackhi_epi32(r0, r1);
  const __m128i low23 = _mm_unpacklo_epi32(r2, r3);
  const __m128i high23 = _mm_unpackhi_epi32(r2, r3);
  put(to, _mm_unpacklo_epi64(low01, low23));
  put(to + width, _mm_unpackhi_epi64(low01, low23));
  put(to + 2 * width, _mm_unpacklo_epi64(high01, high23));
  put(to + 3 * width, _mm_unpackhi_epi64(high01, high23));
}

__mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<std::int64_t>(count, 0, 16)) - 1);
}

// The forms with a mask of ones: g++ 12 takes the others for reads of something undefined.
/// Rows that lie side by side: two of the depth are interleaved, 16 rows at a time.
SHOAL_AVX512_BF16 void pack_side_by_side(const std::uint16_t* from, std::int64_t stride,
                                         std::int64_t count, std::int64_t width, std::int64_t depth,
                                         std::uint32_t* to) {
  for (std::int64_t k = 0; k < depth; k += 2, to += width) {
    const std::uint16_t* even = from + k * stride;
    const std::uint16_t* odd = even + stride;
    for (std::int64_t i = 0; i < width; i += 16) {
      const __mmask16 there = first_lanes(count - i);
      // Masks instead of a tail: lanes beyond the matrix read as zero and touch no memory.
      const __mmask16 odd_there = k + 1 < depth ? there : 0;
      const __m512i low =
          _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(there, even + i));
      const __m512i high =
          _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(odd_there, odd + i));
      _mm512_mask_storeu_epi32(to + i, first_lanes(width - i),
                               _mm512_or_si512(low, _mm512_maskz_slli_epi32(0xffff, high, 16)));
    }
  }
}

/// One panel: to[w * width + i] = word w of row i for i < count, zero for the rest of the width.
SHOAL_AVX512_BF16 void pack_panel(const MatrixView& from, std::int64_t count, std::int64_t width,
                                  std::int64_t depth, std::uint32_t* to) {
  const std::int64_t stride = from.row_stride;
  const std::int64_t step = from.column_stride;
  const std::int64_t words = words_of(depth);
  if (stride == 1) return pack_side_by_side(bits(from), step, count, width, depth, to);
  std::int64_t done = 0;
  if (step == 1 && count == width) {
    // Full panels whose depth is contiguous: 4 x 4 words at a time. The rest of the depth goes word
    // by word below.
    done = depth / 8 * 4;
    for (std::int64_t w = 0; w < done; w += 4) {
      for (std::int64_t i = 0; i < width; i += 4)
        transpose_4x4(bits(from) + i * stride + 2 * w, stride, to + w * width + i, width);
    }
  }
  for (std::int64_t w = done; w < words; ++w) {
    for (std::int64_t i = 0; i < count; ++i)
      to[w * width + i] = word(bits(from) + i * stride + 2 * w * step, step, 2 * w + 1 < depth);
    // Rows behind the matrix are zero: the tile multiplies them, and nobody reads the result.
    std::fill(to + w * width + count, to + (w + 1) * width, 0u);
  }
}

SHOAL_AVX512_BF16 void pack(const MatrixView& view, std::int64_t count, std::int64_t width,
                            std::int64_t depth, std::uint32_t* to) {
  for (std::int64_t i = 0; i < count; i += width, to += width * words_of(depth))
    pack_panel(from(view, i, 0), std::min(width, count - i), width, depth, to);
}

/// One tile of c from a panel of each.
/// VDPBF16PS adds a pair of products to each fp32 sum. 12 x 2 sums, 2 vectors of b and 1 of a fill
/// 27 of the 32 registers.
SHOAL_AVX512_BF16 inline void tile(std::int64_t words, const std::uint32_t* a,
                                   const std::uint32_t* b, float* c, std::int64_t stride,
                                   bool accumulate) {
  __m512 left[kTileRows];
  __m512 right[kTileRows];
#pragma GCC unroll 12
  for (std::int64_t i = 0; i < kTileRows; ++i) left[i] = right[i] = _mm512_setzero_ps();
  for (std::int64_t w = 0; w < words; ++w, a += kTileRows, b += kTileColumns) {
    // A word of b holds two of the depth of one column, a word of a two of one row: one instruction
    // multiplies both pairs and adds them to the sum of row and column.
    const auto b0 = (__m512bh)_mm512_loadu_si512(b);
    const auto b1 = (__m512bh)_mm512_loadu_si512(b + 16);
#pragma GCC unroll 12
    for (std::int64_t i = 0; i < kTileRows; ++i) {
      const auto factor = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[i]));
      left[i] = _mm512_dpbf16_ps(left[i], factor, b0);
      right[i] = _mm512_dpbf16_ps(right[i], factor, b1);
    }
  }
#pragma GCC unroll 12
  for (std::int64_t i = 0; i < kTileRows; ++i) {
    float* row = c + i * stride;
    _mm512_storeu_ps(row, accumulate ? _mm512_add_ps(left[i], _mm512_loadu_ps(row)) : left[i]);
    _mm512_storeu_ps(row + 16,
                     accumulate ? _mm512_add_ps(right[i], _mm512_loadu_ps(row + 16)) : right[i]);
  }
}

/// A tile of which only [rows, columns] lie inside c.
SHOAL_AVX512_BF16 void edge_tile(std::int64_t words, const std::uint32_t* a, const std::uint32_t* b,
                                 float* c, std::int64_t stride, bool accumulate, std::int64_t rows,
                                 std::int64_t columns) {
  alignas(64) float whole[kTileRows * kTileColumns];
  // A whole tile beside c, of which the inner part is copied: the sums are those of an inner tile.
  tile(words, a, b, whole, kTileColumns, false);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j)
      c[i * stride + j] = whole[i * kTileColumns + j] + (accumulate ? c[i * stride + j] : 0);
  }
}

/// A packed block of a times a packed block of b.
SHOAL_AVX512_BF16 void block(std::int64_t rows, std::int64_t columns, std::int64_t words,
                             const std::uint32_t* a, const std::uint32_t* b, float* c,
                             std::int64_t stride, bool accumulate) {
  for (std::int64_t i = 0; i < rows; i += kTileRows) {
    for (std::int64_t j = 0; j < columns; j += kTileColumns) {
      // Panels of 12 rows and of 32 columns lie one after the other, `words` deep.
      const std::uint32_t* panel_a = a + i * words;
      const std::uint32_t* panel_b = b + j * words;
      if (i + kTileRows <= rows && j + kTileColumns <= columns) {
        tile(words, panel_a, panel_b, c + i * stride + j, stride, accumulate);
      } else {
        edge_tile(words, panel_a, panel_b, c + i * stride + j, stride, accumulate,
                  std::min(kTileRows, rows - i), std::min(kTileColumns, columns - j));
      }
    }
  }
}

/// Words of the packed block of a; that of b lies behind it.
std::int64_t packed_rows(std::int64_t rows, std::int64_t depth) {
  return round_up(round_up(std::min(rows, kBlockRows), kTileRows) * block_words(depth), 16);
}

}  // namespace

bool bf16_products() { return avx512_bf16_usable(); }

std::size_t gemm_bf16_workspace(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  return static_cast<std::size_t>(packed_rows(rows, depth) +
                                  round_up(std::min(columns, kBlockColumns), kTileColumns) *
                                      block_words(depth));
}

void gemm_bf16(std::int64_t rows, std::int64_t columns, std::int64_t depth, MatrixView a,
               MatrixView b, float* c, std::int64_t c_stride, bool accumulate, float* workspace) {
  // The order of a sum depends on the depth alone (as in gemm_kernels.cpp): blocks of depth
  // outside, each added to c in fp32.
  const std::int64_t step = 2 * block_words(depth);
  auto* packed_a = reinterpret_cast<std::uint32_t*>(workspace);
  auto* packed_b = packed_a + packed_rows(rows, depth);
  for (std::int64_t k = 0; k < depth; k += step) {
    const std::int64_t deep = std::min(step, depth - k);
    for (std::int64_t i = 0; i < rows; i += kBlockRows) {
      const std::int64_t high = std::min(kBlockRows, rows - i);
      pack(from(a, i, k), high, kTileRows, deep, packed_a);
      for (std::int64_t j = 0; j < columns; j += kBlockColumns) {
        const std::int64_t wide = std::min(kBlockColumns, columns - j);
        const MatrixView right = from(b, k, j);
        // b transposed: its columns are packed as a's rows are.
        pack({right.data, right.column_stride, right.row_stride, right.type}, wide, kTileColumns,
             deep, packed_b);
        block(high, wide, words_of(deep), packed_a, packed_b, c + i * c_stride + j, c_stride,
              accumulate || k > 0);
      }
    }
  }
}

#else

bool bf16_products() { return false; }
std::size_t gemm_bf16_workspace(std::int64_t, std::int64_t, std::int64_t) { return 0; }
void gemm_bf16(std::int64_t, std::int64_t, std::int64_t, MatrixView, MatrixView, float*,
               std::int64_t, bool, float*) {
  SHOAL_CHECK(false, "called where bf16_products() is false");
}

#endif

}  // namespace shoal::ops::kernels
