#pragma once

#include <cstdint>

namespace shoal {

/// The finaliser of SplitMix64: a bijection that spreads every input bit over all output bits. 0
/// stays 0.
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// One step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014): a hash of `x` that maps 0 to no special value.
constexpr std::uint64_t splitmix64(std::uint64_t x) { return mix_bits(x + 0x9e3779b97f4a7c15u); }

}  // namespace shoal
