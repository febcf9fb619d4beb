#pragma once
#include <cstddef>

namespace shoal {

/// Returns the place `offset` bytes behind `begin`.
inline const std::byte* bytes_at(const void* begin, std::size_t offset) {
  return static_cast<const std::byte*>(begin) + offset;
}
inline std::byte* bytes_at(void* begin, std::size_t offset) {
  return static_cast<std::byte*>(begin) + offset;
}

}  // namespace shoal
