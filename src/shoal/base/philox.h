#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shoal {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 128
/// random bits as a pure function of a 128-bit counter and a 64-bit key. No state: any element of
/// any stream can be drawn by any rank.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key);

/// A stream of random numbers, named by a seed and a purpose ("init/h.0.attn.c_attn.weight",
/// "dropout/h.3", "shuffle"), with sub-streams by step, layer, sample. The same key gives the same
/// numbers on every rank, mesh and machine.
class Key {
 public:
  explicit Key(std::uint64_t seed = 0) : value_(seed) {}

  Key child(std::string_view name) const;  ///< a stream of its own per name
  Key child(std::uint64_t index) const;    ///< a stream of its own per number (step, sample, layer)
  std::uint64_t value() const { return value_; }

  std::array<std::uint32_t, 4> bits(std::uint64_t index) const;  ///< 128 bits at a position
  double uniform(std::uint64_t index) const;                     ///< in [0, 1), 53 bits
  double normal(std::uint64_t index) const;  ///< mean 0, variance 1 (Box and Muller, 1958)
  std::uint64_t below(std::uint64_t index,
                      std::uint64_t bound) const;  ///< in [0, bound), bound > 0

 private:
  std::uint64_t value_;
};

}  // namespace shoal
