// Compiled once per instruction set (Highway's foreach_target); the processor chooses at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/checkpoint/format/value_checksum.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <fmt/format.h>
#include <hwy/highway.h>

#include <cstring>

#include "shoal/base/check.h"
#include "shoal/checkpoint/format/value_checksum.h"

#ifndef SHOAL_CHECKPOINT_FORMAT_VALUE_CHECKSUM_PLAIN
#define SHOAL_CHECKPOINT_FORMAT_VALUE_CHECKSUM_PLAIN
namespace shoal::checkpoint::format {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15, kFirst = 0xbf58476d1ce4e5b9,
                        kSecond = 0x94d049bb133111eb;

template <class Bits>
std::uint64_t plain_sum(const unsigned char* data, std::uint64_t first, std::int64_t count) {
  // Each element is mixed with its global index, so the sum notices elements that change places and
  // does not depend on the order in which parts are added.
  std::uint64_t sum = 0, index = (first + 1) * kGolden;
  for (std::int64_t i = 0; i < count; ++i, index += kGolden) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    std::uint64_t z = index ^ bits;
    z = (z ^ (z >> 30)) * kFirst;
    z = (z ^ (z >> 27)) * kSecond;
    sum += z ^ (z >> 31);
  }
  return sum;
}

}  // namespace shoal::checkpoint::format
#endif

HWY_BEFORE_NAMESPACE();
namespace shoal::checkpoint::format::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using Lanes = hn::ScalableTag<std::uint64_t>;

// The bits of so many elements as there are lanes.
HWY_ATTR hn::Vec<Lanes> load(Lanes d, const std::uint64_t* from) { return hn::LoadU(d, from); }
HWY_ATTR hn::Vec<Lanes> load(Lanes d, const std::uint32_t* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<std::uint32_t, Lanes>(), from));
}
template <class Narrow>
HWY_ATTR hn::Vec<Lanes> load(Lanes d, const Narrow* from) {
  const hn::Rebind<std::uint32_t, Lanes> d32;
  return hn::PromoteTo(d, hn::PromoteTo(d32, hn::LoadU(hn::Rebind<Narrow, Lanes>(), from)));
}

template <class Bits>
HWY_ATTR std::uint64_t lane_sum(const unsigned char* data, std::uint64_t first,
                                std::int64_t count) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto stride = hn::Set(d, static_cast<std::uint64_t>(lanes) * kGolden);
  // Lane j takes the elements j, j + lanes, ...: addition modulo 2^64 may be done in any order.
  auto index = hn::Mul(hn::Iota(d, first + 1), hn::Set(d, kGolden));
  auto sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto z = hn::Xor(index, load(d, reinterpret_cast<const Bits*>(data) + i));
    z = hn::Mul(hn::Xor(z, hn::ShiftRight<30>(z)), hn::Set(d, kFirst));
    z = hn::Mul(hn::Xor(z, hn::ShiftRight<27>(z)), hn::Set(d, kSecond));
    sum = hn::Add(sum, hn::Xor(z, hn::ShiftRight<31>(z)));
    index = hn::Add(index, stride);
  }
  // Not by SumOfLanes: gcc's own for AVX-512 adds signed numbers, which must not wrap.
  HWY_ALIGN std::uint64_t parts[hn::MaxLanes(d)];
  hn::Store(sum, d, parts);
  std::uint64_t total = plain_sum<Bits>(data + i * static_cast<std::int64_t>(sizeof(Bits)),
                                        first + static_cast<std::uint64_t>(i), count - i);
  for (std::int64_t lane = 0; lane < lanes; ++lane) total += parts[lane];
  return total;
}

// Highway exports plain functions.
HWY_ATTR std::uint64_t sum_1(const unsigned char* data, std::uint64_t first, std::int64_t count) {
  return lane_sum<std::uint8_t>(data, first, count);
}
HWY_ATTR std::uint64_t sum_2(const unsigned char* data, std::uint64_t first, std::int64_t count) {
  return lane_sum<std::uint16_t>(data, first, count);
}
HWY_ATTR std::uint64_t sum_4(const unsigned char* data, std::uint64_t first, std::int64_t count) {
  return lane_sum<std::uint32_t>(data, first, count);
}
HWY_ATTR std::uint64_t sum_8(const unsigned char* data, std::uint64_t first, std::int64_t count) {
  return lane_sum<std::uint64_t>(data, first, count);
}

}  // namespace shoal::checkpoint::format::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::checkpoint::format {
namespace {

void check_size(ElementType type) {
  const std::size_t size = size_of(type);
  SHOAL_USER_CHECK(size == 1 || size == 2 || size == 4 || size == 8, "checkpoint",
                   "no checksum for elements of {} bytes: type={}", size, name(type));
}

}  // namespace

HWY_EXPORT(sum_1);
HWY_EXPORT(sum_2);
HWY_EXPORT(sum_4);
HWY_EXPORT(sum_8);

std::uint64_t value_checksum(const void* data, ElementType type, std::int64_t first,
                             std::int64_t count) {
  check_size(type);
  const auto* bytes = static_cast<const unsigned char*>(data);
  const auto from = static_cast<std::uint64_t>(first);
  switch (size_of(type)) {
    case 1:
      return HWY_DYNAMIC_DISPATCH(sum_1)(bytes, from, count);
    case 2:
      return HWY_DYNAMIC_DISPATCH(sum_2)(bytes, from, count);
    case 4:
      return HWY_DYNAMIC_DISPATCH(sum_4)(bytes, from, count);
    default:
      return HWY_DYNAMIC_DISPATCH(sum_8)(bytes, from, count);
  }
}

std::uint64_t value_checksum(const void* data, ElementType type, const Box& box, const Shape& shape,
                             std::int64_t begin, std::int64_t end) {
  std::uint64_t sum = 0;
  for_each_run(box, shape, begin, end, [&](const Run& run) {
    sum += value_checksum(static_cast<const char*>(data) +
                              (run.local - begin) * static_cast<std::int64_t>(size_of(type)),
                          type, run.global, run.count);
  });
  return sum;
}

std::uint64_t byte_checksum(std::string_view bytes) {
  return value_checksum(bytes.data(), ElementType::kU8, 0, static_cast<std::int64_t>(bytes.size()));
}

std::string hex(std::uint64_t checksum) { return fmt::format("{:016x}", checksum); }

}  // namespace shoal::checkpoint::format
#endif  // HWY_ONCE
