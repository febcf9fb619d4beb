#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shoal::checkpoint::format::gguf {

/// How a file holds the elements of a tensor, with ggml's numbers. The types of blocks hold 32
/// elements of a row each: a scale d of 16 bits, for kQ4_1 and kQ5_1 a least value m, and a few
/// bits q an element, which stands for d q or d q + m. Those that end in _K hold 256
/// (super_block.h).
enum class BlockType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

const char* name(BlockType type);  ///< "F32", "Q8_0"
/// Returns the type of ggml's number; nothing for one that Shoal does not read.
std::optional<BlockType> block_type(std::uint32_t number);
/// Returns the type of a name in lower case; nothing when there is none that Shoal writes (f32,
/// f16, bf16, q8_0).
std::optional<BlockType> written_type(std::string_view name);
/// Returns ggml's name of the type with this number, whether Shoal reads it or not; "type 99" for a
/// number that has none.
std::string ggml_name(std::uint32_t number);

/// Elements of a block: 256, 32, or 1 for plain types.
std::int64_t block_elements(BlockType type);
/// Returns the bytes of `count` elements, a multiple of block_elements.
std::int64_t bytes_of(BlockType type, std::int64_t count);

/// Computes what `count` elements, a multiple of block_elements, stand for.
void decode(BlockType type, const void* blocks, std::int64_t count, float* values);
/// Writes `count` elements as a type of written_type, rounding as ggml does: f16 and bf16 to
/// nearest even, q8_0 with the block's largest magnitude / 127 as its scale and halves rounded away
/// from zero.
void encode(BlockType type, const float* values, std::int64_t count, void* blocks);

}  // namespace shoal::checkpoint::format::gguf
