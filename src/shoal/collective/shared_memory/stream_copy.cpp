#include "shoal/collective/shared_memory/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/collective/shared_memory/stream_copy.cpp"
#include <hwy/foreach_target.h>
// Highway's own headers come after foreach_target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shoal::collective {
namespace HWY_NAMESPACE {

constexpr std::size_t kLine = 64;

void stream_lines(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<std::uint8_t, kLine> d;
  const std::size_t lanes = hn::Lanes(d);
  // A plain copy up to the first whole line of `to`, and again behind the last one.
  const std::size_t head =
      std::min<std::size_t>((kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine, bytes);
  std::memcpy(to, from, head);
  // Streaming stores are fast where they fill whole cache lines, so only these use them.
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    for (std::size_t i = 0; i < kLine; i += lanes)
      hn::Stream(hn::LoadU(d, from + at + i), d, to + at + i);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::collective
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::collective {

HWY_EXPORT(stream_lines);

void stream_copy(void* to, const void* from, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(stream_lines)
  (static_cast<std::uint8_t*>(to), static_cast<const std::uint8_t*>(from), bytes);
}

void stream_fence() { hwy::FlushStream(); }

}  // namespace shoal::collective
#endif
