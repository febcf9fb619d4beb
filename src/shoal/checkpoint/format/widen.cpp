#include "shoal/checkpoint/format/widen.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace shoal::checkpoint::format {

float half_to_float(unsigned short bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  float size = 0;
  // Every half is a float, so each case is exact: subnormals are multiples of 2^-24, and the bias
  // of the others is 15 with 10 bits of fraction.
  if (exponent == 31) {
    size =
        fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    size = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    size = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return bits & 0x8000 ? -size : size;
}

void widen(std::vector<char>& values, ElementType& type) {
  if (type != ElementType::kF16 && type != ElementType::kBF16) return;
  const std::size_t count = values.size() / 2;
  std::vector<char> wide(count * 4);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, values.data() + 2 * i, 2);
    const float value = type == ElementType::kF16
                            ? half_to_float(bits)
                            : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    std::memcpy(wide.data() + 4 * i, &value, 4);
  }
  values = std::move(wide);
  type = ElementType::kF32;
}

}  // namespace shoal::checkpoint::format
