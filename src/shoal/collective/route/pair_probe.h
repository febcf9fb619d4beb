#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/route/link_matrix.h"
#include "shoal/wire/transport.h"

namespace shoal::collective {

/// Measures what comes from one peer, while the peer measures what comes from here: both send as
/// much as the way takes for a while, which is what a ring does with it. Nobody else may use the
/// connections.
class PairProbe {
 public:
  static constexpr std::size_t kMessageBytes = 32 << 10;
  struct Options {
    std::uint64_t group = 0;   ///< of streams that nobody else uses
    std::uint64_t number = 0;  ///< of this probe among those of the group, the same on both sides
    Duration sends_for{};
  };
  /// `payload`: kMessageBytes that live as long as this object.
  PairProbe(wire::Transport& transport, int peer, const Options& options,
            std::span<const std::byte> payload);
  ~PairProbe();
  PairProbe(const PairProbe&) = delete;
  PairProbe& operator=(const PairProbe&) = delete;

  /// Throws Error(timeout) where the peer has not done its part by `deadline`, and the first cause
  /// where anything has failed.
  LinkSpeed run(Deadline deadline);

 private:
  using Arrival =
      std::pair<Clock::time_point, std::uint64_t>;  ///< when, and how many bytes by then

  void await_peer(Deadline deadline);
  void wait(std::uint64_t seen, Duration longest, Deadline deadline);
  void receive();
  void note_released();
  void send_more();
  std::uint64_t window() const;
  std::uint32_t kbit_s() const;

  wire::Transport& transport_;
  const int peer_;
  const Options options_;
  const std::span<const std::byte> payload_;
  const wire::Stream ready_;
  const wire::Stream data_;
  Duration round_trip_{};
  Clock::time_point began_;
  std::deque<wire::Released> sent_;  ///< and not released yet
  std::vector<Arrival> releases_;
  std::vector<Arrival> arrivals_;
  std::uint64_t released_ = 0;
  std::uint64_t received_ = 0;
  bool said_end_ = false;
  bool heard_end_ = false;
};

/// Returns the bytes a second of the fastest half, by time, of what `arrivals` say: when bytes
/// came, and how many had come by then. A connection begins slowly, and its last packets may be
/// late. 0 for fewer than two arrivals.
double bytes_per_second(std::span<const std::pair<Clock::time_point, std::uint64_t>> arrivals);

}  // namespace shoal::collective
