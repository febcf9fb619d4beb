#include "shoal/collective/codec/coding.h"

#include <algorithm>

#include "shoal/base/check.h"

namespace shoal::collective {

const char* name(Codec codec) {
  const auto number = static_cast<std::size_t>(codec);
  return number < kCodecNames.size() ? kCodecNames[number] : "unknown";
}

int bits_of(Codec codec) {
  switch (codec) {
    case Codec::kNone:
      return 32;
    case Codec::kBF16:
      return 16;
    case Codec::kF8E4M3:
    case Codec::kI8:
      return 8;
    case Codec::kI4:
    case Codec::kE3M0:
      return 4;
    case Codec::kE2M0:
      return 3;
  }
  return 0;
}

void check_coding(const Coding& coding, const char* operation) {
  SHOAL_USER_CHECK(bits_of(coding.codec) > 0, operation, "codec {} does not exist",
                   static_cast<int>(coding.codec));
  SHOAL_USER_CHECK(coding.block > 0 && coding.block % Coding::kBlockStep == 0 &&
                       coding.block <= Coding::kMostBlock,
                   operation, "blocks of {} values: they have a multiple of {}, at most {}",
                   coding.block, Coding::kBlockStep, Coding::kMostBlock);
}

std::size_t encoded_bytes(const Coding& coding, std::size_t count) {
  const auto bits = static_cast<std::size_t>(bits_of(coding.codec));
  if (coding.codec == Codec::kNone || coding.codec == Codec::kBF16) return count * bits / 8;
  // A whole block fills whole bytes, as its length is a multiple of 8: only the last may not.
  const std::size_t whole = count / coding.block;
  const std::size_t rest = count % coding.block;
  const std::size_t block_bytes = 2 + coding.block * bits / 8;
  return whole * block_bytes + (rest > 0 ? 2 + (rest * bits + 7) / 8 : 0);
}

Range coded_part(const Coding& coding, std::size_t count, int ranks, int rank) {
  const std::size_t blocks = (count + coding.block - 1) / coding.block;
  const Range part = part_of(blocks, ranks, rank);
  return {std::min(part.begin * coding.block, count), std::min(part.end * coding.block, count)};
}

}  // namespace shoal::collective
