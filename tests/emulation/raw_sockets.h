#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/descriptor.h"
#include "tests/emulation/wan.h"

// What links really do, as plain sockets see it: the emulator is tested against this, and a run
// over links that were not what they should be is void.

namespace shoal::emulation {

/// One-way packets between two sites. Both ends are stamped with the same clock, the far end by the
/// kernel when the packet comes: how late a thread reads it does not matter.
class UdpPath {
 public:
  static constexpr std::size_t kHeaderBytes = 28;
  static constexpr std::size_t kLeastBytes = kHeaderBytes + 16;
  struct Arrival {
    std::uint64_t number = 0;  ///< counts what was sent, from 0
    std::size_t bytes = 0;     ///< of the IP packet
    Duration delay{};
    Duration at{};  ///< since 1970
  };

  UdpPath(const Wan& wan, int from, int to);
  /// Sends an IP packet of so many bytes.
  void send(std::size_t bytes);
  /// Returns what has arrived since the last call, in order of arrival. `Wan::settle` waits for
  /// what is on its way.
  std::vector<Arrival> take();

 private:
  wire::Descriptor sender_;
  wire::Descriptor receiver_;
  std::uint64_t sent_ = 0;
};

/// Returns the round trips of `count` pings (ICMP), one a millisecond. The far end's kernel answers
/// them, and this end's stamps the answers.
std::vector<Duration> ping(Wan& wan, int from, int to, int count);

/// Returns the bytes of payload a second, times 8, that `connections` TCP connections carry
/// together during `measured`, after all are made and have been used for `warm_up`.
double tcp_bits_per_second(const Wan& wan, int from, int to, int connections, Duration warm_up,
                           Duration measured);

/// Has `connections` TCP connections carry as much as they can, each in both directions at the same
/// time, as ranks use theirs. Returns the bytes of payload a second, times 8, with which `bytes`
/// arrive in each direction after `warm_up` bytes have: of the slower direction.
double tcp_bits_per_second_each_way(const Wan& wan, int a, int b, int connections,
                                    std::uint64_t warm_up, std::uint64_t bytes);

/// Returns the middle one of `values`, which may not be empty.
Duration median(std::vector<Duration> values);

/// Measures one direction of a link that nobody uses in either. Returns why a run over it would be
/// void: the rate is less than 90 % of that of its spec, it takes longer than the spec says by more
/// than a tenth and a millisecond, or devices have dropped packets; empty where the link is as it
/// should be. Takes about a third of a second where the spec limits the rate.
std::string why_void(Wan& wan, int from, int to);

/// Calls `measure` until it returns no problem, at most five times, a second apart, and returns the
/// last problem. The emulator shares its cores with whatever else the machine carries: what is late
/// once is no defect of a link, what is late each time is.
std::string when_quiet(const std::function<std::string()>& measure);

}  // namespace shoal::emulation
