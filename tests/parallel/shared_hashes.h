#pragma once

#include <ATen/core/Tensor.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "shoal/base/hash.h"

namespace shoal::parallel {

/// A hash for each rank and pass, in memory that forked processes share: bits of different ranks
/// are compared by the process that forked them.
class SharedHashes {
 public:
  static constexpr std::size_t kRanks = 4;
  static constexpr std::size_t kPasses = 16;

  SharedHashes()
      : hashes_(static_cast<std::uint64_t*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedHashes() { munmap(hashes_, kBytes); }
  SharedHashes(const SharedHashes&) = delete;
  SharedHashes& operator=(const SharedHashes&) = delete;

  /// Keeps the hash of `row` (f64, contiguous).
  void set(int rank, std::size_t pass, const at::Tensor& row) const {
    std::uint64_t hash = 0;
    for (std::int64_t k = 0; k < row.numel(); ++k)
      hash = splitmix64(hash ^ std::bit_cast<std::uint64_t>(row.const_data_ptr<double>()[k]));
    hashes_[static_cast<std::size_t>(rank) * kPasses + pass] = hash;
  }
  /// Those of the first ranks.
  std::vector<std::uint64_t> of(int ranks) const {
    return {hashes_, hashes_ + static_cast<std::size_t>(ranks) * kPasses};
  }

 private:
  static constexpr std::size_t kBytes = kRanks * kPasses * sizeof(std::uint64_t);
  std::uint64_t* hashes_;
};

}  // namespace shoal::parallel
