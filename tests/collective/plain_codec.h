#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "shoal/base/philox.h"
#include "shoal/collective/codec/codec.h"

namespace shoal::collective {

/// The codecs once more, by another way: lists of the magnitudes that a code can have, searches
/// instead of formulas, doubles, one value at a time, and bits that are set one by one.
class PlainCodec {
 public:
  explicit PlainCodec(const Coding& coding) : coding_(coding), magnitudes_(list(coding.codec)) {}

  /// Returns the bytes; `next` becomes the residuals.
  std::vector<std::byte> encode(std::uint64_t first, const std::vector<float>& values,
                                const std::vector<float>& residual, std::vector<float>& next) {
    std::vector<float> sums = values;
    for (std::size_t i = 0; i < residual.size(); ++i) sums[i] += residual[i];
    std::vector<std::byte> bytes;
    for (std::size_t begin = 0; begin < sums.size(); begin += coding_.block)
      encode_block(first, sums, begin, bytes);
    next = decode(bytes, sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i)
      next[i] = std::isfinite(sums[i]) ? sums[i] - next[i] : 0;
    return bytes;
  }

  std::vector<float> decode(const std::vector<std::byte>& bytes, std::size_t count) const {
    std::vector<float> values(count);
    std::size_t at = 0;
    for (std::size_t begin = 0; begin < count; begin += coding_.block) {
      const std::size_t n = std::min<std::size_t>(coding_.block, count - begin);
      if (coding_.codec == Codec::kBF16) {
        for (std::size_t i = 0; i < n; ++i, at += 2) values[begin + i] = bf16(word(bytes, at));
        continue;
      }
      const std::uint32_t unit = word(bytes, at);
      for (std::size_t i = 0; i < n; ++i)
        values[begin + i] = value(unit, code_at(bytes, at + 2, i));
      at += 2 + (n * bits() + 7) / 8;
    }
    return values;
  }

  /// Returns the unit of the block whose largest magnitude is `largest`; 0 for 0.
  float unit(float largest) const { return bf16(unit_bits(largest)); }
  /// Returns the magnitudes of all codes, in units and in rising order; empty for bf16.
  const std::vector<double>& magnitudes() const { return magnitudes_; }

 private:
  static std::vector<double> list(Codec codec) {
    std::vector<double> all;
    const auto whole = [&](int top) {
      for (int i = 0; i <= top; ++i) all.push_back(i);
    };
    switch (codec) {
      case Codec::kI8:
        whole(127);
        break;
      case Codec::kI4:
        whole(7);
        break;
      case Codec::kE2M0:
        all = {0, 0.25, 0.5, 1};
        break;
      case Codec::kE3M0:
        all = {0, 1.0 / 64, 1.0 / 32, 1.0 / 16, 0.125, 0.25, 0.5, 1};
        break;
      case Codec::kF8E4M3:
        for (int i = 0; i < 8; ++i) all.push_back(i / 512.0);
        for (int power = -6; power <= 8; ++power)
          for (int i = 8; i < 16; ++i) all.push_back(std::ldexp(i / 8.0, power));
        all.pop_back();  // the code of 480 is NaN
        break;
      default:
        break;
    }
    return all;
  }
  static float bf16(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }
  static std::uint32_t word(const std::vector<std::byte>& bytes, std::size_t at) {
    return std::to_integer<std::uint32_t>(bytes.at(at)) |
           (std::to_integer<std::uint32_t>(bytes.at(at + 1)) << 8);
  }
  std::size_t bits() const {
    switch (coding_.codec) {
      case Codec::kE2M0:
        return 3;
      case Codec::kI4:
      case Codec::kE3M0:
        return 4;
      default:
        return 8;
    }
  }
  bool twos_complement() const {
    return coding_.codec == Codec::kI8 || coding_.codec == Codec::kI4;
  }
  std::uint32_t code_at(const std::vector<std::byte>& bytes, std::size_t at, std::size_t i) const {
    std::uint32_t code = 0;
    for (std::size_t b = 0; b < bits(); ++b) {
      const std::size_t bit = i * bits() + b;
      code |= ((std::to_integer<std::uint32_t>(bytes.at(at + bit / 8)) >> (bit % 8)) & 1u) << b;
    }
    return code;
  }
  float value(std::uint32_t unit, std::uint32_t code) const {
    const std::uint32_t top_bit = 1u << (bits() - 1);
    const bool negative = (code & top_bit) != 0;
    std::uint32_t magnitude = negative ? code - top_bit : code;
    if (negative && twos_complement()) magnitude = 2 * top_bit - code;
    float size = 0;
    if (unit != 0x7fc0) {
      size = static_cast<float>(magnitudes_.at(magnitude) * bf16(unit));
    } else if (magnitude == 1) {
      size = std::numeric_limits<float>::infinity();
    } else if (magnitude > 1) {
      size = std::numeric_limits<float>::quiet_NaN();
    }
    return negative ? -size : size;
  }
  std::uint32_t unit_bits(float largest) const {
    if (largest == 0) return 0;
    const double top = magnitudes_.back();
    // The search begins well below, as 0x100 steps of a bf16 are two powers of two.
    std::uint32_t found = std::bit_cast<std::uint32_t>(largest / static_cast<float>(top)) >> 16;
    found = found > 0x100 ? found - 0x100 : 1;
    while (found < 0x7f7f && bf16(found) * top < largest) ++found;
    while (bf16(found) * top > std::numeric_limits<float>::max()) --found;
    return found;
  }
  double random(std::uint64_t index) const {
    if (!coding_.stochastic) return 0.5;
    return coding_.key.bits(index / 32 * 8 + index % 8)[index % 32 / 8] * 0x1p-32;
  }
  /// Tells whether a value that lies `share` of the way from one magnitude to the next goes up.
  bool up(double share, std::uint64_t index) const {
    return std::floor(share * 0x1p24) * 0x1p-24 + random(index) >= 1;
  }
  std::uint32_t bf16_code(float value, std::uint64_t index) const {
    const std::uint32_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return sign | 0x7fc0;
    if (std::isinf(value)) return sign | 0x7f80;
    int power = 0;
    const double size = std::abs(static_cast<double>(value));
    std::frexp(size, &power);
    const double gap = std::ldexp(1, std::max(power, -125) - 8);
    const double below = std::floor(size / gap) * gap;
    double result = below + (up((size - below) / gap, index) ? gap : 0);
    result = std::min(result, static_cast<double>(bf16(0x7f7f)));
    return sign | (std::bit_cast<std::uint32_t>(static_cast<float>(result)) >> 16);
  }
  std::uint32_t code(float value, std::uint32_t unit, std::uint64_t index) const {
    std::uint32_t magnitude = 0;
    if (unit == 0x7fc0) {
      if (std::isnan(value)) magnitude = 2;
      if (std::isinf(value)) magnitude = 1;
    } else if (unit != 0) {
      const float in_units = std::abs(value) / bf16(unit);
      const double t = std::min<double>(in_units, magnitudes_.back());
      while (magnitude + 1 < magnitudes_.size() && magnitudes_[magnitude + 1] <= t) ++magnitude;
      const double below = magnitudes_[magnitude];
      if (t > below && up((t - below) / (magnitudes_[magnitude + 1] - below), index)) ++magnitude;
    }
    if (!std::signbit(value) || unit == 0) return magnitude;
    const std::uint32_t top_bit = 1u << (bits() - 1);
    return twos_complement() ? (2 * top_bit - magnitude) % (2 * top_bit) : magnitude | top_bit;
  }
  void encode_block(std::uint64_t first, const std::vector<float>& sums, std::size_t begin,
                    std::vector<std::byte>& bytes) const {
    const std::size_t n = std::min<std::size_t>(coding_.block, sums.size() - begin);
    const auto push_word = [&](std::uint32_t x) {
      bytes.push_back(static_cast<std::byte>(x & 0xff));
      bytes.push_back(static_cast<std::byte>(x >> 8));
    };
    if (coding_.codec == Codec::kBF16) {
      for (std::size_t i = 0; i < n; ++i) push_word(bf16_code(sums[begin + i], first + begin + i));
      return;
    }
    float largest = 0;
    bool finite = true;
    for (std::size_t i = 0; i < n; ++i) {
      finite = finite && std::isfinite(sums[begin + i]);
      largest = std::max(largest, std::abs(sums[begin + i]));
    }
    const std::uint32_t unit = finite ? unit_bits(largest) : 0x7fc0;
    push_word(unit);
    const std::size_t at = bytes.size();
    bytes.resize(at + (n * bits() + 7) / 8);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t c = code(sums[begin + i], unit, first + begin + i);
      for (std::size_t b = 0; b < bits(); ++b) {
        const std::size_t bit = i * bits() + b;
        bytes[at + bit / 8] |= static_cast<std::byte>(((c >> b) & 1u) << (bit % 8));
      }
    }
  }

  Coding coding_;
  std::vector<double> magnitudes_;
};

}  // namespace shoal::collective
