#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/base/element_type.h"

namespace shoal::ops::kernels {

/// Converts `count` elements stored as `type` (f32, bf16 or f16) to float, exactly.
void widen(ElementType type, const void* from, std::size_t count, float* to);

/// Converts float to `type` (f32, bf16 or f16), rounded to nearest even.
void narrow(ElementType type, const float* from, std::size_t count, void* to);

/// Converts float to bf16, rounded up or down at random so that the expected value is the value
/// itself: in the mean this keeps small updates, which rounding to nearest would lose (Gupta et
/// al., "Deep learning with limited numerical precision", 2015).
///
/// Element i of `from` has index `first` + i and a draw r of 16 bits: the word of Philox counter
/// (index / 128 * 16 + index % 16) under `key`, half index / 16 % 8. The magnitude rounds up where
/// its 16 lost bits plus r carry. The result is a function of key, index and value alone: any split
/// gives the same bits.
void narrow_stochastically(std::uint64_t key, std::uint64_t first, const float* from,
                           std::size_t count, std::uint16_t* to);

/// The functions below compute the same values by plain loops; the vector code is tested against
/// them.
namespace plain {
void widen(ElementType type, const void* from, std::size_t count, float* to);
void narrow(ElementType type, const float* from, std::size_t count, void* to);
void narrow_stochastically(std::uint64_t key, std::uint64_t first, const float* from,
                           std::size_t count, std::uint16_t* to);
}  // namespace plain

}  // namespace shoal::ops::kernels
