#pragma once

#include <cstdint>

#include "shoal/base/philox.h"

namespace shoal::data {

/// A random order of the numbers below `size`, in which the number at any place can be computed by
/// itself. It is a Feistel network over Philox on the next even power of two (Luby and Rackoff,
/// 1988), applied again while its result lies outside (cycle walking; Black and Rogaway, 2002).
class Permutation {
 public:
  /// Makes the order that belongs to `key`; `size` >= 1.
  Permutation(Key key, std::uint64_t size);

  std::uint64_t size() const { return size_; }
  /// Returns the number at `index` < size(). A bijection.
  std::uint64_t operator[](std::uint64_t index) const;

 private:
  std::uint64_t once(std::uint64_t value) const;

  Key key_;
  std::uint64_t size_;
  int half_bits_;
};

}  // namespace shoal::data
