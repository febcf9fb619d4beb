#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shoal/collective/codec/coding.h"

namespace shoal::collective {

/// Carries what an encoding has rounded away into the next one, which adds it to its values (error
/// feedback; Seide et al., "1-bit stochastic gradient descent", 2014). Each array is as long as the
/// values, or empty: then nothing is added, or nothing is kept.
struct Feedback {
  std::span<const float> residual;
  /// Takes, for each value, `value + residual` less what is decoded of it; 0 for infinities and
  /// NaN. It may be `residual` itself.
  std::span<float> next;
};

/// Throws Error(usage) in the name of `operation` unless each array has `values` numbers or none.
void check_residuals(const Feedback& feedback, std::size_t values, const char* operation);

/// Encodes `values`, of which the first has the global index `first`, a multiple of
/// `coding.block`. `to` has encoded_bytes(coding, values.size()) bytes.
///
/// The bytes are a function of the coding, the global indices and the values alone: values that are
/// cut into several calls at multiples of the block give the same bytes, and so does every
/// processor. No finite sum of a value and its residual overflows; at the end of fp32 the sum
/// itself can be an infinity. Values of a block with an infinity or NaN become 0, except those:
/// they keep what they are, but for the sign of NaN. Throws Error(usage) for a coding that
/// check_coding refuses, for kNone, and for another `first` or length, also of the residuals.
void encode(const Coding& coding, std::uint64_t first, std::span<const float> values,
            Feedback feedback, std::span<std::byte> to);

enum class Decode : std::uint8_t {
  kStore,  ///< over what is there
  kAdd,    ///< to what is there, in fp32
};

/// Decodes the bytes of `to.size()` values, which may come from a peer. Throws Error(data) for
/// bytes of another length and for a unit that no `encode` writes; parts of `to` may have been
/// written then.
void decode(const Coding& coding, std::span<const std::byte> from, std::span<float> to, Decode how);

}  // namespace shoal::collective
