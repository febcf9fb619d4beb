#pragma once

#include <cstddef>

#include "shoal/base/element_type.h"
#include "shoal/collective/operation.h"

namespace shoal::collective {

/// Reduces `sources` buffers of `count` elements, in order 0, 1, 2 ..., and writes the result to
/// each of `targets`:
///   target[t][i] = ((source[0][i] op source[1][i]) op source[2][i]) ...
/// A target may be one of the sources; otherwise buffers do not overlap. fp16, bf16 and fp8
/// accumulate in fp32 and round once, to nearest even; kAverage divides the sum by `sources`,
/// kPremulSum multiplies every element by `scale` first. The order is fixed, so the bits do not
/// depend on who computes. Uses the widest vectors that the processor has, found at run time.
/// `supports_fold` must hold.
void fold(ElementType type, Reduction reduction, const void* const* source, int sources,
          void* const* target, int targets, std::size_t count, double scale = 1);

/// Convert `count` elements of a floating type narrower than fp32 to fp32, and back with rounding
/// to nearest even. The two ranges do not overlap.
void widen(ElementType type, const void* from, float* to, std::size_t count);
void narrow(ElementType type, const float* from, void* to, std::size_t count);

/// Tells whether `fold` has the reduction. Bitwise reductions take integers and bool; minimum and
/// maximum any type but complex; kAverage and kPremulSum floating and complex types; bool takes sum
/// as "or", product as "and".
bool supports_fold(ElementType type, Reduction reduction);

}  // namespace shoal::collective
