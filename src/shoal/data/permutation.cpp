#include "shoal/data/permutation.h"

#include "shoal/base/check.h"

namespace shoal::data {
namespace {

// Four rounds suffice for a Feistel network to pass for random (Luby and Rackoff); two more cost
// little.
constexpr int kFeistelRounds = 6;

}  // namespace

Permutation::Permutation(Key key, std::uint64_t size) : key_(key), size_(size), half_bits_(1) {
  SHOAL_CHECK(size >= 1 && size <= std::uint64_t{1} << 62, "a permutation of {}", size);
  // The smallest domain 4^h that holds `size`: at most four values a number, so cycle walking takes
  // few steps.
  while (half_bits_ < 31 && (std::uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
}

std::uint64_t Permutation::once(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (int round = 0; round < kFeistelRounds; ++round) {
    // The round is part of the counter: each round is another random function.
    const std::uint64_t mixed =
        (left ^ key_.bits(static_cast<std::uint64_t>(round) << 32 | right)[0]) & mask;
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::uint64_t Permutation::operator[](std::uint64_t index) const {
  SHOAL_CHECK(index < size_, "place {} of {}", index, size_);
  // The network is a bijection of the whole domain. Following it until it comes back below `size`
  // makes one of the numbers below `size`.
  do index = once(index);
  while (index >= size_);
  return index;
}

}  // namespace shoal::data
