#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "shoal/base/element_type.h"
#include "shoal/checkpoint/format/box.h"

namespace shoal::checkpoint::format {

/// A checksum of values that does not depend on how they are sharded: the sum modulo 2^64, over the
/// elements, of a mix of an element's bits and its global index. Checksums of disjoint parts add up
/// to that of the whole. One changed element always changes it, since the mix is one-to-one in the
/// bits (the finalizer of SplitMix64; Steele, Lea and Flood, 2014); several do but for one case in
/// 2^64. Not cryptographic.
///
/// `data` points to `count` elements whose global indices are `first`, `first + 1`, ... The code is
/// vectorised for the processor at hand.
std::uint64_t value_checksum(const void* data, ElementType type, std::int64_t first,
                             std::int64_t count);

/// Returns the checksum of elements `[begin, end)` of a box of a tensor of `shape`; `data` points
/// to element `begin`.
std::uint64_t value_checksum(const void* data, ElementType type, const Box& box, const Shape& shape,
                             std::int64_t begin, std::int64_t end);

/// Returns the checksum of plain bytes, each an element with its offset as index.
std::uint64_t byte_checksum(std::string_view bytes);

std::string hex(std::uint64_t checksum);  ///< 16 digits

}  // namespace shoal::checkpoint::format
