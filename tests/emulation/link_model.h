#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "shoal/base/clock.h"

namespace shoal::emulation {

/// What one direction of a link does to packets. Sizes and rates are those of IP packets with their
/// headers.
struct LinkSpec {
  Duration delay{};
  /// Each packet takes up to so much longer, uniformly distributed.
  Duration jitter{};
  double bits_per_second = 0;       ///< of the link; 0: no limit
  double flow_bits_per_second = 0;  ///< of each connection; 0: no limit
  double loss = 0;                  ///< the share of packets that vanish, each independently
  /// Bytes that wait where a rate is limited, the packet that is being sent included: for the link,
  /// and for each connection. A packet that does not fit any more is dropped (tail drop).
  std::size_t queue_bytes = std::size_t{1} << 20;
  /// Jitter lets packets overtake each other. Otherwise a packet that is faster waits for those
  /// before it, so a dense stream takes nearly the whole jitter.
  bool reorder = false;
  /// false: the link is cut. What was on its way is gone too.
  bool open = true;
  /// One connection, as Packet::flow names it, has a limit of its own. 0: none has.
  std::uint64_t slow_flow = 0;
  double slow_flow_bits_per_second = 0;
};

struct PacketCount {
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;
  bool operator==(const PacketCount&) const = default;
};

/// What became of the packets of one direction. Those that were offered and are none of the others
/// are on their way.
struct Counters {
  PacketCount offered;
  PacketCount delivered;
  PacketCount lost;        ///< by LinkSpec::loss
  PacketCount overflowed;  ///< dropped because a queue was full
  PacketCount cut;         ///< while the link was cut, or when it was
};

/// A packet as the device of a site gave it. In fast mode it stands for the several packets of one
/// connection into which it would be cut on a link.
struct Packet {
  std::vector<std::byte> data;
  std::uint64_t flow = 0;  ///< names its connection
  PacketCount size;        ///< on the link
};

/// One direction of a link under whatever clock its caller has. Not thread-safe.
class LinkModel {
 public:
  explicit LinkModel(std::uint64_t seed) : random_(seed) {}

  /// Packets that are on their way keep the delay and the rate that they met.
  void set(const LinkSpec& spec);
  const LinkSpec& spec() const { return spec_; }
  const Counters& counters() const { return counters_; }
  /// Returns the connection that has sent the most bytes since the last `set`; 0 where none has.
  std::uint64_t busiest_flow() const;

  /// Sends a packet. `now` is never before an earlier one.
  void offer(Packet packet, Clock::time_point now);
  /// Returns when `take` has to be called next; nothing where no packet is on its way.
  std::optional<Clock::time_point> next() const;
  struct Delivery {
    Packet packet;
    Clock::time_point due;
  };
  /// Returns the next packet that has come to the other end by `now`, in order of arrival.
  std::optional<Delivery> take(Clock::time_point now);

 private:
  /// A queue that is drained at a fixed rate.
  struct Queue {
    double bytes = 0;  ///< that waited at `at`
    Clock::time_point at{};
    /// Returns when the last byte of the packet has left; nothing where it does not fit.
    std::optional<Clock::time_point> admit(std::uint64_t packet_bytes, Clock::time_point now,
                                           double bits_per_second, std::size_t most_bytes);
  };
  struct Event {
    Clock::time_point at;
    std::uint64_t order;  ///< among events of one time
    bool at_the_end;      ///< else it has passed the queue of its connection and comes to the link
    Packet packet;
    /// Orders a heap whose first event is the earliest.
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  double limit_of(std::uint64_t flow) const {
    const bool slow = spec_.slow_flow != 0 && flow == spec_.slow_flow;
    return slow ? spec_.slow_flow_bits_per_second : spec_.flow_bits_per_second;
  }
  void enter_link(Packet packet, Clock::time_point at);
  void push(Clock::time_point at, bool at_the_end, Packet packet);
  Event pop();

  LinkSpec spec_;
  Counters counters_;
  std::mt19937_64 random_;
  Queue queue_;
  std::map<std::uint64_t, Queue> flows_;
  std::map<std::uint64_t, std::uint64_t> flow_bytes_;
  Clock::time_point last_due_{};
  std::uint64_t order_ = 0;
  std::vector<Event> events_;  ///< a heap
};

}  // namespace shoal::emulation
