#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "shoal/base/narrow_float.h"
#include "shoal/checkpoint/format/gguf/block_type.h"

namespace shoal::checkpoint::format::gguf_block_type_test {
namespace {

using namespace gguf;
using Bytes = std::vector<unsigned char>;

/// A block with these halves in front, then `bytes`.
Bytes block(const std::vector<float>& halves, const Bytes& bytes) {
  Bytes block;
  for (const float value : halves) {
    const std::uint16_t bits = narrow_f16(value).bits;
    block.push_back(static_cast<unsigned char>(bits));
    block.push_back(static_cast<unsigned char>(bits >> 8));
  }
  block.insert(block.end(), bytes.begin(), bytes.end());
  return block;
}

std::vector<float> decoded(BlockType type, const Bytes& bytes) {
  std::vector<float> values(32);
  EXPECT_EQ(bytes_of(type, 32), static_cast<std::int64_t>(bytes.size())) << name(type);
  decode(type, bytes.data(), 32, values.data());
  return values;
}

/// Bytes whose lower halves are 0 to 15, whose upper halves 15 to 0.
Bytes nibbles() {
  Bytes bytes;
  for (int i = 0; i < 16; ++i) bytes.push_back(static_cast<unsigned char>(i | (15 - i) << 4));
  return bytes;
}

// The definitions of ggml: element i is the lower half of byte i, element i + 16 the upper one.
TEST(BlockType, NibblesAreElements) {
  const auto q4_0 = decoded(BlockType::kQ4_0, block({0.5f}, nibbles()));
  const auto q4_1 = decoded(BlockType::kQ4_1, block({0.5f, -3.25f}, nibbles()));
  Bytes fifth{0b00000001, 0, 0b10000000, 0};  // of elements 0 and 23
  Bytes five = fifth;
  for (const unsigned char byte : nibbles()) five.push_back(byte);
  const auto q5_0 = decoded(BlockType::kQ5_0, block({0.5f}, five));
  const auto q5_1 = decoded(BlockType::kQ5_1, block({0.5f, -3.25f}, five));
  for (int i = 0; i < 32; ++i) {
    const int q = i < 16 ? i : 31 - i;
    const int wide = q + (i == 0 || i == 23 ? 16 : 0);
    EXPECT_EQ(q4_0[i], 0.5f * static_cast<float>(q - 8)) << i;
    EXPECT_EQ(q4_1[i], 0.5f * static_cast<float>(q) - 3.25f) << i;
    EXPECT_EQ(q5_0[i], 0.5f * static_cast<float>(wide - 16)) << i;
    EXPECT_EQ(q5_1[i], 0.5f * static_cast<float>(wide) - 3.25f) << i;
  }
}

TEST(BlockType, BytesHaveASign) {
  Bytes bytes;
  for (int i = 0; i < 32; ++i) bytes.push_back(static_cast<unsigned char>(i * 8 - 128));
  const auto values = decoded(BlockType::kQ8_0, block({0.25f}, bytes));
  for (int i = 0; i < 32; ++i) EXPECT_EQ(values[i], 0.25f * static_cast<float>(i * 8 - 128));
}

std::vector<float> there_and_back(BlockType type, const std::vector<float>& values) {
  Bytes bytes(bytes_of(type, static_cast<std::int64_t>(values.size())));
  const auto count = static_cast<std::int64_t>(values.size());
  encode(type, values.data(), count, bytes.data());
  std::vector<float> back(values.size());
  decode(type, bytes.data(), count, back.data());
  return back;
}

TEST(BlockType, PlainTypesRoundToNearest) {
  const std::vector<float> values{0, -1.5f, 3.14159274f, 65504, 1e-3f, -2e-8f};
  EXPECT_EQ(there_and_back(BlockType::kF32, values), values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(there_and_back(BlockType::kF16, values)[i], widen(narrow_f16(values[i])));
    EXPECT_EQ(there_and_back(BlockType::kBF16, values)[i], widen(narrow_bf16(values[i])));
  }
}

// 127 steps to each side of zero: none of a block is off by more than half a step, and the scale's
// own rounding of 2^-11.
TEST(BlockType, Q8IsWithinHalfAStep) {
  std::vector<float> values(64);
  for (int i = 0; i < 64; ++i) values[i] = std::sin(static_cast<float>(i)) * (i < 32 ? 1 : 1000);
  const auto back = there_and_back(BlockType::kQ8_0, values);
  for (int i = 0; i < 64; ++i) {
    const double largest = i < 32 ? 1 : 1000;
    EXPECT_NEAR(back[i], values[i], largest * (0.5 / 127 + 1.0 / 2048)) << i;
  }
  EXPECT_EQ(there_and_back(BlockType::kQ8_0, std::vector<float>(32)), std::vector<float>(32));
  // 0.5 steps are rounded away from zero, as C's round does.
  std::vector<float> halves(32);
  halves[0] = 127, halves[1] = 0.5f, halves[2] = -1.5f;
  const auto rounded = there_and_back(BlockType::kQ8_0, halves);
  EXPECT_EQ(rounded[1], 1);
  EXPECT_EQ(rounded[2], -2);
}

TEST(BlockType, WhatIsNoNumberIsZeroInABlock) {
  std::vector<float> values(32, 1);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(there_and_back(BlockType::kQ8_0, values)[3], 0);
}

/// Element i of a super-block with one group of elements that are not zero.
std::vector<float> super_decoded(BlockType type, const Bytes& block) {
  std::vector<float> values(256);
  EXPECT_EQ(bytes_of(type, 256), static_cast<std::int64_t>(block.size())) << name(type);
  decode(type, block.data(), 256, values.data());
  return values;
}

// gguf_oracle.py compares all elements with ggml's; here one of each kind of field, by hand.
TEST(BlockType, SuperBlocksHaveGroups) {
  Bytes q4 = block({2, 0.5f}, Bytes(140));
  q4[4 + 1] = 3 | 1 << 6;    // scale of group 1; upper bits of that of group 5
  q4[4 + 5] = 2;             // least value of group 1
  q4[4 + 9] = 4;             // scale of group 5, lower bits: 4 + 16
  q4[16 + 7] = 9 << 4;       // element 7 of group 1
  q4[16 + 64 + 8] = 5 << 4;  // element 8 of group 5
  auto values = super_decoded(BlockType::kQ4_K, q4);
  EXPECT_EQ(values[32 + 7], 2 * 3 * 9 - 0.5f * 2);
  EXPECT_EQ(values[32 + 8], -0.5f * 2);
  EXPECT_EQ(values[5 * 32 + 8], 2 * 20 * 5);

  Bytes q6(208);
  q6[64 + 32 + 1] = 7 << 4;                       // element 97 of the second 128
  q6[128 + 32 + 1] = 1 << 6;                      // and its fifth bit
  q6[192 + 14] = static_cast<unsigned char>(-3);  // the scale of its group
  for (const unsigned char byte : block({4}, {})) q6.push_back(byte);
  values = super_decoded(BlockType::kQ6_K, q6);
  EXPECT_EQ(values[128 + 97], 4 * -3 * (7 + 16 - 32));
  EXPECT_EQ(values[128 + 98], 4 * -3 * -32);
  EXPECT_EQ(values[0], 0);
}

/// Whole numbers of 256 elements, and of their groups, packed as ggml's headers describe each kind
/// of super-block: which byte and which bits of it have a part of which number.
struct Packed {
  std::vector<int> quants;
  std::vector<int> scales;
  std::vector<int> leasts;

  /// Numbers below the limits, of which neighbours differ.
  Packed(int elements_of_a_group, int quant_limit, int scale_limit) {
    for (int i = 0; i < 256; ++i) quants.push_back((i * 7 + i / 16 * 5) % quant_limit);
    for (int j = 0; j < 256 / elements_of_a_group; ++j) {
      scales.push_back((j * 13 + 5) % scale_limit);
      leasts.push_back((j * 23 + 11) % scale_limit);
    }
  }
  float expected(int i, float scale, float least, int quant_shift = 0, int scale_shift = 0) const {
    const std::size_t group = static_cast<std::size_t>(i) / (256 / scales.size());
    return scale * static_cast<float>(scales[group] - scale_shift) *
               static_cast<float>(quants[static_cast<std::size_t>(i)] - quant_shift) -
           least * static_cast<float>(leasts[group]);
  }
};

void put(unsigned char& byte, int bits, int shift) {
  byte = static_cast<unsigned char>(byte | bits << shift);
}

/// Two bits each, of four runs of 32 elements in 32 bytes.
void put_two_bits(unsigned char* bytes, const std::vector<int>& quants, int below) {
  for (int i = 0; i < 256; ++i)
    put(bytes[i / 128 * 32 + i % 32], quants[i] >> below & 3, i / 32 % 4 * 2);
}

Bytes with_halves_behind(Bytes bytes, const std::vector<float>& halves) {
  for (const unsigned char byte : block(halves, {})) bytes.push_back(byte);
  return bytes;
}

TEST(BlockType, SuperBlocksOfTwoAndThreeBits) {
  const Packed two(16, 4, 16);
  Bytes q2(80);
  for (int j = 0; j < 16; ++j) {
    put(q2[j], two.scales[j], 0);
    put(q2[j], two.leasts[j], 4);
  }
  put_two_bits(&q2[16], two.quants, 0);
  auto values = super_decoded(BlockType::kQ2_K, with_halves_behind(q2, {0.5f, 0.25f}));
  for (int i = 0; i < 256; ++i) EXPECT_EQ(values[i], two.expected(i, 0.5f, 0.25f)) << i;

  // Third bits of eight runs of 32 elements in 32 bytes; scales of 6 bits, 32 more than they are:
  // their lower four bits in the halves of eight bytes, their upper two in four bytes.
  const Packed three(16, 8, 64);
  Bytes q3(108);
  for (int i = 0; i < 256; ++i) put(q3[i % 32], three.quants[i] >> 2, i / 32);
  put_two_bits(&q3[32], three.quants, 0);
  for (int j = 0; j < 16; ++j) {
    put(q3[96 + j % 8], three.scales[j] & 15, j < 8 ? 0 : 4);
    put(q3[96 + 8 + j % 4], three.scales[j] >> 4, j / 4 * 2);
  }
  values = super_decoded(BlockType::kQ3_K, with_halves_behind(q3, {0.5f}));
  for (int i = 0; i < 256; ++i) EXPECT_EQ(values[i], three.expected(i, 0.5f, 0, 4, 32)) << i;
}

TEST(BlockType, SuperBlocksOfFourFiveAndSixBits) {
  for (const int bits : {4, 5}) {
    const Packed packed(32, 1 << bits, 64);
    Bytes bytes(bits == 4 ? 140 : 172);
    // Of the first four groups six bits of two bytes; of the others four bits each in one byte, and
    // two each in what is left of those.
    for (int j = 0; j < 4; ++j) {
      put(bytes[j], packed.scales[j], 0);
      put(bytes[j + 4], packed.leasts[j], 0);
      put(bytes[j + 8], packed.scales[j + 4] & 15, 0);
      put(bytes[j + 8], packed.leasts[j + 4] & 15, 4);
      put(bytes[j], packed.scales[j + 4] >> 4, 6);
      put(bytes[j + 4], packed.leasts[j + 4] >> 4, 6);
    }
    for (int i = 0; i < 256; ++i) {
      if (bits == 5) put(bytes[12 + i % 32], packed.quants[i] >> 4, i / 32);
      put(bytes[(bits == 5 ? 44 : 12) + i / 64 * 32 + i % 32], packed.quants[i] & 15,
          i / 32 % 2 * 4);
    }
    const auto values =
        super_decoded(bits == 4 ? BlockType::kQ4_K : BlockType::kQ5_K, block({0.5f, 0.25f}, bytes));
    for (int i = 0; i < 256; ++i)
      EXPECT_EQ(values[i], packed.expected(i, 0.5f, 0.25f)) << bits << " " << i;
  }
  // Of 128 elements the first 64 have the lower halves of 64 bytes, the others the upper ones.
  const Packed six(16, 64, 256);
  Bytes q6(208);
  for (int i = 0; i < 256; ++i) {
    put(q6[i / 128 * 64 + i % 64], six.quants[i] & 15, i % 128 / 64 * 4);
    put(q6[128 + i / 128 * 32 + i % 32], six.quants[i] >> 4, i / 32 % 4 * 2);
  }
  for (int j = 0; j < 16; ++j) q6[192 + j] = static_cast<unsigned char>(six.scales[j] - 128);
  const auto values = super_decoded(BlockType::kQ6_K, with_halves_behind(q6, {0.5f}));
  for (int i = 0; i < 256; ++i) EXPECT_EQ(values[i], six.expected(i, 0.5f, 0, 32, 128)) << i;
}

TEST(BlockType, NamesAndNumbers) {
  EXPECT_EQ(block_type(8), BlockType::kQ8_0);
  EXPECT_FALSE(block_type(17));
  EXPECT_EQ(ggml_name(12), "Q4_K");
  EXPECT_EQ(ggml_name(99), "type 99");
  EXPECT_EQ(written_type("bf16"), BlockType::kBF16);
  EXPECT_FALSE(written_type("q4_0"));
}

}  // namespace
}  // namespace shoal::checkpoint::format::gguf_block_type_test
