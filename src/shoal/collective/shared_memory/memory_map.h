#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal::collective {

/// Names a place in the memory of one rank of this node so that its peers can find it.
struct Location {
  /// The rank whose memory it is; -1: memory that only its own process can address.
  std::int32_t region = -1;
  std::uint64_t offset = 0;

  bool visible() const { return region >= 0; }
};

/// Knows the memory of all ranks of a node as it is mapped into this process, and turns pointers
/// into locations and back, checking bounds. Ranks that are threads share one address space: every
/// pointer is visible and stands for itself. Threads: any; nothing changes after construction.
class MemoryMap {
 public:
  struct Region {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
  };

  static MemoryMap one_address_space() { return MemoryMap({}, 0, true); }
  /// `regions[r]` is the place of rank r's arena in this process, empty for a rank that shares
  /// none.
  static MemoryMap of_processes(std::vector<Region> regions, int own) {
    return MemoryMap(std::move(regions), own, false);
  }

  /// Returns the location of `p`, which any region may hold: a tensor over a SharedBuffer lies in
  /// its owner's arena. The location is not visible where none holds all `bytes`.
  Location locate(const void* p, std::size_t bytes) const;
  /// Throws Error(data) when `[offset, offset + bytes)` is not inside the region: a peer's
  /// descriptor is not trusted.
  std::byte* resolve(Location location, std::size_t bytes) const;

 private:
  MemoryMap(std::vector<Region> regions, int own, bool one_address_space)
      : regions_(std::move(regions)), own_(own), one_address_space_(one_address_space) {}
  bool holds(std::size_t region, const void* p, std::size_t bytes) const;

  std::vector<Region> regions_;
  int own_;
  bool one_address_space_;
};

}  // namespace shoal::collective
