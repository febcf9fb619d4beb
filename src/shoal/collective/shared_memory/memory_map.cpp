#include "shoal/collective/shared_memory/memory_map.h"

#include <fmt/format.h>

#include "shoal/base/error.h"

namespace shoal::collective {

bool MemoryMap::holds(std::size_t region, const void* p, std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  const auto base = reinterpret_cast<std::uintptr_t>(regions_[region].base);
  return at >= base && at - base < regions_[region].bytes &&
         bytes <= regions_[region].bytes - (at - base);
}

Location MemoryMap::locate(const void* p, std::size_t bytes) const {
  // Threads: the offset is the pointer, and any region that counts as visible will do.
  if (one_address_space_) return {0, reinterpret_cast<std::uintptr_t>(p)};
  const auto in = [&](std::size_t region) {
    return Location{
        static_cast<std::int32_t>(region),
        static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - regions_[region].base)};
  };
  // Most buffers lie in the arena of this rank.
  if (holds(static_cast<std::size_t>(own_), p, bytes)) return in(static_cast<std::size_t>(own_));
  for (std::size_t region = 0; region < regions_.size(); ++region)
    if (holds(region, p, bytes)) return in(region);
  return {};
}

std::byte* MemoryMap::resolve(Location location, std::size_t bytes) const {
  if (one_address_space_)
    return reinterpret_cast<std::byte*>(location.offset);  // NOLINT: a pointer of this very process
  // A peer may have written any location. The comparisons are arranged so that none overflows.
  const auto region = static_cast<std::size_t>(location.region);
  if (location.region < 0 || region >= regions_.size() ||
      location.offset > regions_[region].bytes ||
      bytes > regions_[region].bytes - location.offset) {
    throw Error(
        ErrorKind::kData, "shared_memory",
        fmt::format("a peer named {} bytes at offset {} of region {}, which does not hold them",
                    bytes, location.offset, location.region));
  }
  return regions_[region].base + location.offset;
}

}  // namespace shoal::collective
