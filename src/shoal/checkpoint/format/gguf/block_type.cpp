#include "shoal/checkpoint/format/gguf/block_type.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/narrow_float.h"
#include "shoal/checkpoint/format/gguf/super_block.h"

namespace shoal::checkpoint::format::gguf {
namespace {

constexpr std::int64_t kBlock = 32;
constexpr std::int64_t kSuperBlock = 256;

/// A type of ggml: its number and name; for what Shoal reads also the elements and bytes of a
/// block.
struct Type {
  std::uint32_t number;
  const char* name;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

constexpr Type kTypes[] = {{0, "F32", 1, 4},
                           {1, "F16", 1, 2},
                           {2, "Q4_0", kBlock, 18},
                           {3, "Q4_1", kBlock, 20},
                           {6, "Q5_0", kBlock, 22},
                           {7, "Q5_1", kBlock, 24},
                           {8, "Q8_0", kBlock, 34},
                           {9, "Q8_1"},
                           {10, "Q2_K", kSuperBlock, 84},
                           {11, "Q3_K", kSuperBlock, 110},
                           {12, "Q4_K", kSuperBlock, 144},
                           {13, "Q5_K", kSuperBlock, 176},
                           {14, "Q6_K", kSuperBlock, 210},
                           {15, "Q8_K"},
                           {16, "IQ2_XXS"},
                           {17, "IQ2_XS"},
                           {18, "IQ3_XXS"},
                           {19, "IQ1_S"},
                           {20, "IQ4_NL"},
                           {21, "IQ3_S"},
                           {22, "IQ2_S"},
                           {23, "IQ4_XS"},
                           {24, "I8"},
                           {25, "I16"},
                           {26, "I32"},
                           {27, "I64"},
                           {28, "F64"},
                           {29, "IQ1_M"},
                           {30, "BF16", 1, 2},
                           {34, "TQ1_0"},
                           {35, "TQ2_0"},
                           {39, "MXFP4"}};

const Type* find(std::uint32_t number) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const Type& type) { return type.number == number; });
  return found == std::end(kTypes) ? nullptr : found;
}

const Type& entry(BlockType type) {
  const Type* found = find(static_cast<std::uint32_t>(type));
  SHOAL_CHECK(found && found->elements > 0, "type {}", static_cast<std::uint32_t>(type));
  return *found;
}

std::uint16_t bits16(const unsigned char* at) {
  return static_cast<std::uint16_t>(at[0] | at[1] << 8);
}

float half(const unsigned char* at) { return widen(Float16{bits16(at)}); }

void put16(std::uint16_t bits, unsigned char* at) {
  at[0] = static_cast<unsigned char>(bits);
  at[1] = static_cast<unsigned char>(bits >> 8);
}

/// The bits of 32 elements of 4 or 5 bits: the lower four lie in 16 bytes, those of element i in
/// the lower half of byte i, and of element i + 16 in the upper half; the fifth bits lie in 4
/// bytes.
struct Nibbles {
  const unsigned char* bytes;
  const unsigned char* fifth = nullptr;

  int operator[](int i) const {
    const unsigned char both = bytes[i % 16];
    const int four = i < 16 ? both & 15 : both >> 4;
    return fifth ? four | (fifth[i / 8] >> (i % 8) & 1) << 4 : four;
  }
};

void decode_around_zero(float scale, const Nibbles& nibbles, int zero, float* values) {
  for (int i = 0; i < kBlock; ++i) values[i] = static_cast<float>(nibbles[i] - zero) * scale;
}

void decode_from_least(float scale, float least, const Nibbles& nibbles, float* values) {
  for (int i = 0; i < kBlock; ++i) values[i] = static_cast<float>(nibbles[i]) * scale + least;
}

void decode_block(BlockType type, const unsigned char* block, float* values) {
  switch (type) {
    case BlockType::kQ4_0:
      return decode_around_zero(half(block), {block + 2}, 8, values);
    case BlockType::kQ4_1:
      return decode_from_least(half(block), half(block + 2), {block + 4}, values);
    case BlockType::kQ5_0:
      return decode_around_zero(half(block), {block + 6, block + 2}, 16, values);
    case BlockType::kQ5_1:
      return decode_from_least(half(block), half(block + 2), {block + 8, block + 4}, values);
    case BlockType::kQ8_0:
      for (int i = 0; i < kBlock; ++i)
        values[i] = half(block) * static_cast<float>(static_cast<signed char>(block[2 + i]));
      return;
    case BlockType::kF16:
      values[0] = half(block);
      return;
    case BlockType::kBF16:
      values[0] = widen(BFloat16{bits16(block)});
      return;
    case BlockType::kF32: {
      const std::uint32_t upper = bits16(block + 2);
      values[0] = std::bit_cast<float>(upper << 16 | bits16(block));
      return;
    }
    default:
      decode_super_block(type, block, values);
  }
}

void encode_q8_0(const float* values, unsigned char* block) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  // Elements are divided by the scale before it is rounded to 16 bits.
  const float scale = largest / 127;
  const float inverse = scale > 0 ? 1 / scale : 0;
  put16(narrow_f16(scale).bits, block);
  for (int i = 0; i < kBlock; ++i) {
    const float q = std::clamp(std::round(values[i] * inverse), -127.0f, 127.0f);
    // What is not a number has no place in a block.
    block[2 + i] = static_cast<unsigned char>(static_cast<signed char>(q == q ? q : 0));
  }
}

}  // namespace

const char* name(BlockType type) { return entry(type).name; }

std::optional<BlockType> block_type(std::uint32_t number) {
  const Type* found = find(number);
  if (!found || found->elements == 0) return std::nullopt;
  return static_cast<BlockType>(number);
}

std::optional<BlockType> written_type(std::string_view name) {
  for (const auto& [word, type] : {std::pair{"f32", BlockType::kF32},
                                   {"f16", BlockType::kF16},
                                   {"bf16", BlockType::kBF16},
                                   {"q8_0", BlockType::kQ8_0}})
    if (name == word) return type;
  return std::nullopt;
}

std::string ggml_name(std::uint32_t number) {
  const Type* found = find(number);
  return found ? found->name : fmt::format("type {}", number);
}

std::int64_t block_elements(BlockType type) { return entry(type).elements; }

std::int64_t bytes_of(BlockType type, std::int64_t count) {
  return count / entry(type).elements * entry(type).bytes;
}

void decode(BlockType type, const void* blocks, std::int64_t count, float* values) {
  const Type& shape = entry(type);
  const auto* block = static_cast<const unsigned char*>(blocks);
  for (std::int64_t i = 0; i < count; i += shape.elements, block += shape.bytes)
    decode_block(type, block, values + i);
}

void encode(BlockType type, const float* values, std::int64_t count, void* blocks) {
  const Type& shape = entry(type);
  auto* block = static_cast<unsigned char*>(blocks);
  for (std::int64_t i = 0; i < count; i += shape.elements, block += shape.bytes) {
    switch (type) {
      case BlockType::kF32: {
        const auto bits = std::bit_cast<std::uint32_t>(values[i]);
        put16(static_cast<std::uint16_t>(bits), block);
        put16(static_cast<std::uint16_t>(bits >> 16), block + 2);
        break;
      }
      case BlockType::kF16:
        put16(narrow_f16(values[i]).bits, block);
        break;
      case BlockType::kBF16:
        put16(narrow_bf16(values[i]).bits, block);
        break;
      case BlockType::kQ8_0:
        encode_q8_0(values + i, block);
        break;
      default:
        SHOAL_CHECK(false, "{} is not written", name(type));
    }
  }
}

}  // namespace shoal::checkpoint::format::gguf
