#pragma once

#include <cstdint>

namespace shoal::ops::kernels {

/// Element i of the normal stream of `key`: group g = i / 64 draws Philox counters 16 g ... 16 g +
/// 15; element 64 g + 16 h + lane takes half h / 2 of the words of counter lane, its cosine (h
/// even) or sine (h odd) of Box and Muller (1958), in fp32. Writes [begin, begin + count) times
/// scale.
void fill_normal(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                 float* out);
/// Element i of the uniform stream in [-scale, scale): the same counters, one word an element, its
/// upper 24 bits.
void fill_uniform(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                  float* out);

/// One row of a dropout mask applied: y = residual (null: 0) + scale x where the draw of the
/// feature is at least `threshold` (of 65536), else residual. Feature f of (sample, position):
/// counter (f / 128 * 16 + f % 16, position, sample), half-word f / 16 % 8.
void dropout_row(std::uint64_t key, std::uint64_t sample, std::uint32_t position,
                 std::uint32_t threshold, float scale, std::int64_t width, const float* x,
                 const float* residual, float* y);

/// The same values by a plain loop: what the vector code is tested against.
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
