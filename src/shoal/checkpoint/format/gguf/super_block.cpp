#include "shoal/checkpoint/format/gguf/super_block.h"

#include "shoal/base/check.h"
#include "shoal/base/narrow_float.h"

namespace shoal::checkpoint::format::gguf {
namespace {

constexpr int kElements = 256;

float half_at(const unsigned char* at) {
  return widen(Float16{static_cast<std::uint16_t>(at[0] | at[1] << 8)});
}

/// Two bits at `shift` of a byte, four bits of its lower or upper half.
int two_bits(unsigned char byte, int shift) { return byte >> shift & 3; }
int four_bits(unsigned char byte, bool upper) { return upper ? byte >> 4 : byte & 15; }

// 84 bytes: 16 scales (lower half) and least values (upper half) of 16 elements each, 64 bytes of 2
// bits an element, d, m. Element 128 n + 32 j + l lies in byte 32 n + l, at bit 2 j.
void decode_q2(const unsigned char* block, float* values) {
  const unsigned char* quants = block + 16;
  const float scale = half_at(block + 80);
  const float least = half_at(block + 82);
  for (int i = 0; i < kElements; ++i) {
    const unsigned char group = block[i / 16];
    const int q = two_bits(quants[i / 128 * 32 + i % 32], i % 128 / 32 * 2);
    values[i] = scale * static_cast<float>(group & 15) * static_cast<float>(q) -
                least * static_cast<float>(group >> 4);
  }
}

/// The scale of 6 bits of group j in the 12 bytes of kQ3_K: 4 lower bits in the first 8 bytes, 2
/// upper ones in the last 4.
int scale_of_q3(const unsigned char* scales, int j) {
  return four_bits(scales[j % 8], j >= 8) | two_bits(scales[8 + j % 4], j / 4 * 2) << 4;
}

// 110 bytes: 32 bytes of the third bits, 64 bytes of 2 bits as in kQ2_K, 12 of scales, d. The third
// bit of element 32 k + l is bit k of byte l; without it an element is 4 less.
void decode_q3(const unsigned char* block, float* values) {
  const unsigned char* quants = block + 32;
  const unsigned char* scales = block + 96;
  const float scale = half_at(block + 108);
  for (int i = 0; i < kElements; ++i) {
    const int low = two_bits(quants[i / 128 * 32 + i % 32], i % 128 / 32 * 2);
    const bool third = (block[i % 32] >> (i / 32) & 1) != 0;
    values[i] = scale * static_cast<float>(scale_of_q3(scales, i / 16) - 32) *
                static_cast<float>(third ? low : low - 4);
  }
}

/// Scale and least value, 6 bits each, of group j in the 12 bytes of kQ4_K and kQ5_K.
struct SixBits {
  int scale;
  int least;
};
SixBits group_of_q4(const unsigned char* scales, int j) {
  if (j < 4) return {scales[j] & 63, scales[j + 4] & 63};
  return {four_bits(scales[j + 4], false) | scales[j - 4] >> 6 << 4,
          four_bits(scales[j + 4], true) | scales[j] >> 6 << 4};
}

// d, m, 12 bytes of scales and least values of 32 elements each, in kQ5_K 32 bytes of fifth bits,
// 128 bytes of 4 bits an element: 144 or 176 bytes. Groups 2 k and 2 k + 1 are the lower and upper
// halves of bytes 32 k to 32 k + 31; the fifth bit of element 32 j + l is bit j of byte l.
void decode_q4_or_q5(const unsigned char* block, bool fifth, float* values) {
  const unsigned char* upper = block + 16;
  const unsigned char* quants = block + (fifth ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    const SixBits group = group_of_q4(block + 4, j);
    const float scale = half_at(block) * static_cast<float>(group.scale);
    const float least = half_at(block + 2) * static_cast<float>(group.least);
    for (int l = 0; l < 32; ++l) {
      int q = four_bits(quants[j / 2 * 32 + l], j % 2 == 1);
      if (fifth) q |= (upper[l] >> j & 1) << 4;
      values[32 * j + l] = scale * static_cast<float>(q) - least;
    }
  }
}

// 210 bytes: 128 bytes of the lower 4 bits, 64 of the upper 2, 16 scales of 8 bits with a sign for
// 16 elements each, d. Of 128 elements, 32 j + l has its lower bits in the lower (j < 2) or upper
// half of byte 32 (j mod 2) + l, its upper ones at bit 2 j of byte l.
void decode_q6(const unsigned char* block, float* values) {
  const float scale = half_at(block + 208);
  for (int i = 0; i < kElements; ++i) {
    const int n = i / 128;
    const int j = i % 128 / 32;
    const int l = i % 32;
    const int low = four_bits(block[64 * n + 32 * (j % 2) + l], j >= 2);
    const int q = low | two_bits(block[128 + 32 * n + l], 2 * j) << 4;
    const auto group = static_cast<signed char>(block[192 + i / 16]);
    values[i] = scale * static_cast<float>(group) * static_cast<float>(q - 32);
  }
}

}  // namespace

void decode_super_block(BlockType type, const unsigned char* block, float* values) {
  switch (type) {
    case BlockType::kQ2_K:
      return decode_q2(block, values);
    case BlockType::kQ3_K:
      return decode_q3(block, values);
    case BlockType::kQ4_K:
      return decode_q4_or_q5(block, false, values);
    case BlockType::kQ5_K:
      return decode_q4_or_q5(block, true, values);
    case BlockType::kQ6_K:
      return decode_q6(block, values);
    default:
      SHOAL_CHECK(false, "{} has no super-blocks", name(type));
  }
}

}  // namespace shoal::checkpoint::format::gguf
