#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/route/link_matrix.h"
#include "shoal/wire/transport.h"

namespace shoal::collective {

/// Measures what comes from one rank, while it sends another rank as much as that way takes, which
/// is what a ring does. The way back of each carries nothing but acknowledgements: were it loaded
/// too, these would stand behind the data, and whoever began first would get more than its part.
/// Nobody else may use the connections.
class LinkProbe {
 public:
  static constexpr std::size_t kMessageBytes = 32 << 10;
  struct Options {
    std::uint64_t group = 0;   ///< of streams that nobody else uses
    std::uint64_t number = 0;  ///< of this probe among those of the group, the same on all ranks
    Duration sends_for{};
  };
  /// `to` is the rank to which this one sends, and which has it as `from`; -1: none. `payload`:
  /// kMessageBytes that live as long as this object.
  LinkProbe(wire::Transport& transport, int to, int from, const Options& options,
            std::span<const std::byte> payload);
  ~LinkProbe();
  LinkProbe(const LinkProbe&) = delete;
  LinkProbe& operator=(const LinkProbe&) = delete;

  /// Returns the speed of the way from `from`, nothing of use without one. Throws Error(timeout)
  /// where one of the two has not done its part by `deadline`, and the first cause where anything
  /// has failed.
  LinkSpeed run(Deadline deadline);

 private:
  using Arrival =
      std::pair<Clock::time_point, std::uint64_t>;  ///< when, and how many bytes by then

  bool done() const;
  void begin_when_ready();
  void wait(std::uint64_t seen, Deadline deadline);
  void receive();
  void note_released();
  void send_more();
  std::uint64_t window() const;
  std::uint32_t kbit_s() const;

  wire::Transport& transport_;
  const int to_;
  const int from_;
  const Options options_;
  const std::span<const std::byte> payload_;
  const wire::Stream ready_;
  const wire::Stream data_;
  Clock::time_point ready_since_;
  std::optional<Clock::time_point> began_;  ///< to send, when `to` was ready
  std::deque<wire::Released> sent_;         ///< and not released yet
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
