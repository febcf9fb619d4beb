#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/operation.h"

namespace shoal::collective {

/// True for reductions of types narrower than fp32 whose partial results would round more than
/// once: all but minimum and maximum.
bool must_round_once(const Operation& operation);
/// True for those, and for reductions whose partial sums would not know when to divide.
bool must_fold_once(const Operation& operation);

/// What an operation says of itself in front of every message, so that ranks that call something
/// else find out: plain bytes.
struct TcpCall {
  static constexpr std::size_t kBytes =
      32;  ///< in front of a message; a multiple of what any element is aligned to

  std::uint8_t kind = 0, type = 0, reduction = 0, algorithm = 0;
  std::int32_t peer = -1;
  std::uint64_t count = 0;  ///< all ones: counts of their own for each rank
  double scale = 1;
  std::uint64_t tag = 0;  ///< of a collective
  bool operator==(const TcpCall&) const = default;

  static TcpCall of(const Operation& operation, Algorithm algorithm);
  void write(std::byte* to) const;
  /// `from` has at least kBytes.
  static TcpCall read(const std::byte* from);
  /// For people; the bytes may come from outside and be anything.
  std::string text() const;
};
static_assert(sizeof(TcpCall) <= TcpCall::kBytes);

}  // namespace shoal::collective
