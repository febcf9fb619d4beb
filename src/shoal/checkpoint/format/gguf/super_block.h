#pragma once

#include "shoal/checkpoint/format/gguf/block_type.h"

namespace shoal::checkpoint::format::gguf {

/// Computes the 256 elements of one block of type kQ2_K to kQ6_K (ggml's "k-quants"). Such a block
/// has 8 or 16 groups of elements; a group's scale, and in kQ2_K, kQ4_K and kQ5_K its least value,
/// are whole numbers of a few bits that two halves d and m of the block multiply.
void decode_super_block(BlockType type, const unsigned char* block, float* values);

}  // namespace shoal::checkpoint::format::gguf
