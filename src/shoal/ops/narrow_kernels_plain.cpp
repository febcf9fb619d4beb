#include <bit>
#include <cstring>

#include "shoal/base/check.h"
#include "shoal/base/narrow_float.h"
#include "shoal/base/philox.h"
#include "shoal/ops/narrow_kernels.h"

namespace shoal::ops::kernels::plain {

void widen(ElementType type, const void* from, std::size_t count, float* to) {
  if (type == ElementType::kF32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  SHOAL_CHECK(type == ElementType::kBF16 || type == ElementType::kF16, "widen: {}", name(type));
  const auto* bits = static_cast<const std::uint16_t*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = type == ElementType::kBF16 ? widen(BFloat16{bits[i]}) : widen(Float16{bits[i]});
  }
}

void narrow(ElementType type, const float* from, std::size_t count, void* to) {
  if (type == ElementType::kF32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  SHOAL_CHECK(type == ElementType::kBF16 || type == ElementType::kF16, "narrow: {}", name(type));
  auto* bits = static_cast<std::uint16_t*>(to);
  for (std::size_t i = 0; i < count; ++i) {
    bits[i] = type == ElementType::kBF16 ? narrow_bf16(from[i]).bits : narrow_f16(from[i]).bits;
  }
}

void narrow_stochastically(std::uint64_t key, std::uint64_t first, const float* from,
                           std::size_t count, std::uint16_t* to) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t index = first + i;
    // The same draw as the vector code's: lane index % 16 of a group of 128.
    const std::uint64_t counter = index / 128 * 16 + index % 16;
    const std::uint32_t word = Key(key).bits(counter)[index / 32 % 4];
    const std::uint32_t draw = (word >> (index / 16 % 2 * 16)) & 0xffffu;
    const std::uint32_t u = std::bit_cast<std::uint32_t>(from[i]);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    to[i] = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u : (u + draw) >> 16);
  }
}

}  // namespace shoal::ops::kernels::plain
