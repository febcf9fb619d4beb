#include <array>
#include <cmath>
#include <numbers>

#include "shoal/base/philox.h"
#include "shoal/ops/random_kernels.h"

namespace shoal::ops::kernels::plain {
namespace {

std::array<std::uint32_t, 4> draw(std::uint64_t key, std::uint32_t a, std::uint32_t b,
                                  std::uint64_t c) {
  return philox({a, b, static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c >> 32)},
                {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
}

// The order of vectors: element 64 g + 16 h + lane belongs to counter 16 g + lane. It looks odd in
// a loop, and lets a vector of counters write contiguous memory.
std::array<std::uint32_t, 4> element_words(std::uint64_t key, std::uint64_t index) {
  const std::uint64_t counter = index / 64 * 16 + index % 16;
  return draw(key, static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
              0);
}

}  // namespace

void fill_normal(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                 float* out) {
  for (std::uint64_t i = begin; i < begin + count; ++i) {
    const auto words = element_words(key, i);
    const int h = static_cast<int>(i / 16 % 4);
    const double u = ((words[h / 2 * 2] >> 8) + 1.0) * 0x1p-24;
    const double v = 2 * std::numbers::pi * ((words[h / 2 * 2 + 1] >> 8) * 0x1p-24);
    *out++ = static_cast<float>(scale * std::sqrt(-2 * std::log(u)) *
                                (h % 2 == 0 ? std::cos(v) : std::sin(v)));
  }
}

void fill_uniform(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                  float* out) {
  for (std::uint64_t i = begin; i < begin + count; ++i)
    *out++ = scale * (static_cast<float>(element_words(key, i)[i / 16 % 4] >> 8) * 0x1p-23f - 1);
}

void dropout_row(std::uint64_t key, std::uint64_t sample, std::uint32_t position,
                 std::uint32_t threshold, float scale, std::int64_t width, const float* x,
                 const float* residual, float* y) {
  for (std::int64_t f = 0; f < width; ++f) {
    const auto words =
        draw(key, static_cast<std::uint32_t>(f / 128 * 16 + f % 16), position, sample);
    const int half = static_cast<int>(f / 16 % 8);
    const std::uint32_t bits = (words[half / 2] >> (half % 2 * 16)) & 0xffff;
    y[f] = (residual == nullptr ? 0 : residual[f]) + (bits >= threshold ? scale * x[f] : 0);
  }
}

}  // namespace shoal::ops::kernels::plain
