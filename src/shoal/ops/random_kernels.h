#pragma once

#include <cstdint>

namespace shoal::ops::kernels {

/// Writes elements [begin, begin + count) of the normal stream of `key`, times `scale`. Element i:
/// group g = i / 64 draws Philox counters 16 g ... 16 g + 15; element 64 g + 16 h + lane takes half
/// h / 2 of the words of counter lane, its cosine (h even) or sine (h odd) of Box and Muller
/// (1958), in fp32.
void fill_normal(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                 float* out);
/// Writes elements of the uniform stream in [-scale, scale), from the same counters: the upper 24
/// bits of one word an element.
void fill_uniform(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                  float* out);

/// Applies one row of a dropout mask: y = residual (null: 0) + scale x where the draw of the
/// feature is at least `threshold` (of 65536), else residual. The draw of feature f of (sample,
/// position) is half-word f / 16 % 8 of counter (f / 128 * 16 + f % 16, position, sample).
void dropout_row(std::uint64_t key, std::uint64_t sample, std::uint32_t position,
                 std::uint32_t threshold, float scale, std::int64_t width, const float* x,
                 const float* residual, float* y);

/// The functions below compute the same values by plain loops; the vector code is tested against
/// them.
namespace plain {
void fill_normal(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                 float* out);
void fill_uniform(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                  float* out);
void dropout_row(std::uint64_t key, std::uint64_t sample, std::uint32_t position,
                 std::uint32_t threshold, float scale, std::int64_t width, const float* x,
                 const float* residual, float* y);
}  // namespace plain

}  // namespace shoal::ops::kernels
