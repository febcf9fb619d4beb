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

/// Tells how far one rank is with the collectives of a group. A rank answers with it when a peer
/// asks why nothing arrives.
struct Standing {
  static constexpr std::size_t kBytes = 16 + TcpCall::kBytes;

  std::uint64_t entered = 0;  ///< the last collective begun; all before have been begun too
  std::uint64_t left = 0;     ///< all up to here are complete
  TcpCall last;               ///< the call of `entered`

  wire::Bytes pack() const;
  /// Returns nothing for bytes that no rank of Shoal would send.
  static std::optional<Standing> unpack(std::span<const std::byte> bytes);
  /// Describes this rank to a peer that waits in collective `sequence`: "never entered #412 (its
  /// last was #411, all_reduce of ...)", "is inside #412 ...".
  std::string against(std::uint64_t sequence) const;
};

/// Records the last kKept collectives that one rank has started in one group: the calls, when they
/// began and when they were complete. Threads: any.
class FlightRecorder {
 public:
  static constexpr std::size_t kKept = 64;
  /// Records a call. `sequence` is one more than that of the call before.
  void enter(std::uint64_t sequence, const TcpCall& call);
  void leave(std::uint64_t sequence);
  Standing standing() const;
  /// Returns the recorded collectives, the oldest first, as those of `rank`.
  std::vector<FlightEntry> entries(int rank) const;

 private:
  struct Entry {
    std::uint64_t sequence = 0;
    TcpCall call;
    Clock::time_point began{};
    Clock::time_point ended{};  ///< the epoch until the collective is complete
  };
  mutable std::mutex mutex_;
  std::array<Entry, kKept> entries_;  ///< the entry of a sequence lies at sequence % kKept
  std::uint64_t entered_ = 0;
  std::uint64_t left_ = 0;
};

}  // namespace shoal::collective
