#include "shoal/checkpoint/format/value_checksum.h"

#include <fmt/format.h>

#include <cstring>

#include "shoal/base/check.h"

namespace shoal::checkpoint::format {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

template <class Bits>
std::uint64_t sum_of_mixes(const void* data, std::uint64_t first, std::int64_t count) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint64_t sum = 0, index = (first + 1) * kGolden;
  for (std::int64_t i = 0; i < count; ++i, index += kGolden) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    sum += mix(index ^ bits);
  }
  return sum;
}

}  // namespace

std::uint64_t value_checksum(const void* data, ElementType type, std::int64_t first, std::int64_t count) {
  switch (size_of(type)) {
    case 1:
      return sum_of_mixes<std::uint8_t>(data, first, count);
    case 2:
      return sum_of_mixes<std::uint16_t>(data, first, count);
    case 4:
      return sum_of_mixes<std::uint32_t>(data, first, count);
    case 8:
      return sum_of_mixes<std::uint64_t>(data, first, count);
    default:
      SHOAL_USER_CHECK(false, "checkpoint", "no checksum for elements of {} bytes: type={}", size_of(type), name(type));
      return 0;
  }
}

std::uint64_t value_checksum(const void* data, ElementType type, const Box& box, const Shape& shape, std::int64_t begin, std::int64_t end) {
  std::uint64_t sum = 0;
  for_each_run(box, shape, begin, end, [&](const Run& run) {
    sum +=
        value_checksum(static_cast<const char*>(data) + (run.local - begin) * static_cast<std::int64_t>(size_of(type)), type, run.global, run.count);
  });
  return sum;
}

std::uint64_t byte_checksum(std::string_view bytes) {
  return value_checksum(bytes.data(), ElementType::kU8, 0, static_cast<std::int64_t>(bytes.size()));
}

std::string hex(std::uint64_t checksum) { return fmt::format("{:016x}", checksum); }

}  // namespace shoal::checkpoint::format
