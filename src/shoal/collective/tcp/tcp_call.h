#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/operation.h"

namespace shoal::collective {

/// Returns true for reductions of types narrower than fp32 whose partial results would round more
/// than once: all but minimum and maximum.
bool must_round_once(const Operation& operation);
/// Returns true where must_round_once does, and for averages and scaled sums: an algorithm that
/// adds partial sums would divide or scale more than once.
bool must_fold_once(const Operation& operation);

/// Describes an operation in front of each of its messages, as plain bytes, so that ranks that call
/// different operations find out.
struct TcpCall {
  /// Size in front of a message; a multiple of every element type's alignment.
  static constexpr std::size_t kBytes = 32;

  std::uint8_t kind = 0;
  std::uint8_t type = 0;
  std::uint8_t reduction = 0;
  std::uint8_t algorithm = 0;
  std::int32_t peer = -1;
  /// The number of elements of the message in an all_to_all with per-rank counts; 0 in
  /// announcements.
  std::uint64_t count = 0;
  /// The bits of the factor of kPremulSum (those of 1 elsewhere); with a codec its key instead.
  std::uint64_t scale_or_key = 0;
  std::uint32_t tag = 0;             ///< label of a collective; 0 for a message
  std::uint8_t per_rank_counts = 0;  ///< 1: an all_to_all with them
  std::uint8_t codec = 0;
  std::uint16_t block : 15 = 0;      ///< 0 without a codec
  std::uint16_t stochastic : 1 = 0;  ///< 0 without a codec
  bool operator==(const TcpCall&) const = default;

  static TcpCall of(const Operation& operation, Algorithm algorithm);
  /// Returns the call in front of a message of `elements`.
  TcpCall of_message(std::uint64_t elements) const;
  void write(std::byte* to) const;
  /// `from` has at least kBytes.
  static TcpCall read(const std::byte* from);
  /// Describes the call for people. The bytes may come from another process and be anything.
  std::string text() const;
};
static_assert(sizeof(TcpCall) <= TcpCall::kBytes);

}  // namespace shoal::collective
