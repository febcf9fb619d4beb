#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "shoal/base/philox.h"
#include "shoal/collective/algorithm/step.h"

namespace shoal::collective {

/// The format in which fp32 values travel between peers. docs/concepts/codecs.md has the bits.
enum class Codec : std::uint8_t {
  kNone,    ///< as they are
  kBF16,    ///< 16 bits a value, without blocks
  kF8E4M3,  ///< 8 bits, of which 4 are exponent and 3 mantissa, and a unit a block
  kI8,      ///< 8 bits: -127 to 127 units
  kI4,      ///< 4 bits: -7 to 7 units
  /// 4 bits, of which 3 are exponent: 0 and 2^-6 to 1 units (Douillard et al., "Streaming DiLoCo
  /// with overlapping communication", 2025).
  kE3M0,
  kE2M0,  ///< 3 bits, of which 2 are exponent: 0, 1/4, 1/2 and 1 units
};
/// By the number of the codec.
inline constexpr std::array kCodecNames{"none", "bf16", "f8e4m3", "i8", "i4", "e3m0", "e2m0"};
inline constexpr Codec kCodecs[] = {Codec::kBF16, Codec::kF8E4M3, Codec::kI8,
                                    Codec::kI4,   Codec::kE3M0,   Codec::kE2M0};

/// Says how values are encoded. All ranks of an operation pass an equal one.
struct Coding {
  /// Blocks are multiples of this many values, and at most kMostBlock long.
  static constexpr std::size_t kBlockStep = 32;
  static constexpr std::size_t kMostBlock = 4096;

  Codec codec = Codec::kNone;
  /// Rounds up or down at random, so that the expected value of what is decoded is what was
  /// encoded, to 2^-24 of it and of the distance between the neighbouring codes. Otherwise to the
  /// nearest, and from the middle away from zero.
  bool stochastic = true;
  /// Values of one block share a unit, and ranges of values are cut at multiples of it.
  std::uint16_t block = 128;
  /// Gives the random numbers, by the global index of each value. Whoever encodes other values
  /// passes another key: a key that is used again makes the same errors again.
  Key key = Key(0);

  bool operator==(const Coding& other) const {
    return codec == other.codec && stochastic == other.stochastic && block == other.block &&
           key.value() == other.key.value();
  }
};

const char* name(Codec codec);  ///< "unknown" for a value that a peer sent and that is no codec
/// Returns the bits of one value, without its share of the block's unit.
int bits_of(Codec codec);

/// Throws Error(usage) in the name of `operation` for a codec or block that does not exist.
void check_coding(const Coding& coding, const char* operation);

/// Returns the bytes that `count` values become: for each begun block 2 bytes of unit (none in
/// bf16) and the bits of its values, rounded up to bytes.
std::size_t encoded_bytes(const Coding& coding, std::size_t count);

/// Returns the values of `count` that `rank` adds up in a coded all-reduce of `ranks`: blocks are
/// divided as evenly as possible, and the last one may be short.
Range coded_part(const Coding& coding, std::size_t count, int ranks, int rank);

}  // namespace shoal::collective
