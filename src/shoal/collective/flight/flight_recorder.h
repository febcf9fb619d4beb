#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "shoal/base/clock.h"
#include "shoal/collective/flight/flight_book.h"
#include "shoal/collective/tcp/tcp_call.h"
#include "shoal/wire/assembler.h"

namespace shoal::collective {

/// How far one rank has come with the collectives of a group: what it answers when a peer asks why
/// nothing arrives.
struct Standing {
  static constexpr std::size_t kBytes = 16 + TcpCall::kBytes;

  std::uint64_t entered = 0;  ///< the last collective begun; all before have been begun too
  std::uint64_t left = 0;     ///< all up to here are complete
  TcpCall last;               ///< what `entered` calls

  wire::Bytes pack() const;
  /// Nothing for what no rank of ours says.
  static std::optional<Standing> unpack(std::span<const std::byte> bytes);
  /// Where this leaves somebody who waits in collective `sequence`: "never entered #412 (its last
  /// was #411, all_reduce of ...)", "is inside #412
  /// ...".
  std::string against(std::uint64_t sequence) const;
};

/// Remembers the last collectives that one rank has begun in one group: what they were, when they
/// began, when they were complete. Threads: any.
class FlightRecorder {
 public:
  static constexpr std::size_t kKept = 64;
  /// `sequence`: one more than that of the collective entered before.
  void enter(std::uint64_t sequence, const TcpCall& call);
  void leave(std::uint64_t sequence);
  Standing standing() const;
  /// Those that are remembered, the oldest first, as those of `rank`.
  std::vector<FlightEntry> entries(int rank) const;
  /// A line for each that is remembered, the oldest first: "#412 all_reduce of 5 x f32 (ring),
  /// began 1.203 s ago, took 0.4 ms".
  std::string text() const;

 private:
  struct Entry {
    std::uint64_t sequence = 0;
    TcpCall call;
    Clock::time_point began{}, ended{};  ///< ended: the epoch until then
  };
  mutable std::mutex mutex_;
  std::array<Entry, kKept> entries_;  // that of a sequence lies at sequence % kKept
  std::uint64_t entered_ = 0, left_ = 0;
};

}  // namespace shoal::collective
