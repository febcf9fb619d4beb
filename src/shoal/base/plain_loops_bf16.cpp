#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>

#include "shoal/base/instruction_sets.h"
#include "shoal/base/plain_loops.h"

namespace shoal::plain_loops {
namespace {

#if defined(__x86_64__)
// Highway knows no instruction of AVX512-BF16. Chosen at run time: nothing here runs on a processor
// without it.
#define SHOAL_AVX512_BF16 __attribute__((target("avx512f,avx512bf16")))

/// Two bf16 numbers, the first in the lower half: 0.5 and 0.25, and 0.5 and 1.
constexpr int kLeft = 0x3E80'3F00;
constexpr int kRight = 0x3F80'3F00;

SHOAL_AVX512_BF16 double multiply_pairs(std::int64_t rounds, float* result) {
  const __m512bh left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(kLeft));
  const __m512bh right = reinterpret_cast<__m512bh>(_mm512_set1_epi32(kRight));
  // Twelve chains hide the latency of two units with six cycles each.
  constexpr std::size_t kChains = 12;
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, left, right);
  }
  __m512 all = sums[0];
  for (std::size_t i = 1; i < kChains; ++i) all = _mm512_add_ps(all, sums[i]);
  std::array<float, 16> lanes{};
  _mm512_storeu_ps(lanes.data(), all);
  *result = 0;
  for (const float lane : lanes) *result += lane;
  return 4.0 * 16 * kChains * static_cast<double>(rounds);
}
#endif

}  // namespace

double multiply_add_bf16(std::int64_t rounds, float* result) {
#if defined(__x86_64__)
  if (avx512_bf16_usable()) return multiply_pairs(rounds, result);
#endif
  return multiply_add(rounds, result);
}

}  // namespace shoal::plain_loops
