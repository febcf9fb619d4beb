#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/claims.h"
#include "shoal/wire/rail_report.h"

namespace shoal::wire {

/// Keeps the books of one rail other than the first, over all connections that it has one after the
/// other: which pieces the peer has not reported yet, and how many have come from the peer. No
/// socket. docs/notes/rails.md has the states.
class RailAccount {
 public:
  static constexpr std::size_t kMostUnreported = 1024;  ///< pieces: 16 MiB

  enum class State : std::uint8_t {
    kOpen,     ///< it has a connection, or waits for its first
    kClosing,  ///< this rank has closed the connection, and awaits what the peer has received
    kClosed,   ///< both have closed it, and what was not received is claimed again
  };
  State state() const { return state_; }
  /// Returns the number of the current connection, or of the last one.
  std::uint16_t connection() const { return connection_; }

  /// Returns the number of the connection that comes next, where there is none.
  std::uint16_t awaited() const {
    return static_cast<std::uint16_t>(connection_ + (state_ == State::kClosed ? 1 : 0));
  }

  /// The kernel has taken all of a piece.
  void wrote(Claims::Chunk piece);
  /// Counts the pieces that have come whole over this connection: whoever reads it counts them up.
  std::uint64_t& received_pieces() { return received_; }
  /// Returns true where pieces wait for the peer's report, those left out that were moved or that
  /// the peer has from another rail.
  bool waits() const { return first_waiting() < unreported_.size(); }
  /// Returns true where so many do that no more are to be written. A connection has fewer on its
  /// way; a peer that reads and never reports would have this rank keep everything.
  bool is_full() const { return unreported_.size() >= kMostUnreported; }

  /// Returns the report that is due: pieces have come since the last one.
  std::optional<RailReport> report(std::uint16_t rail);
  /// The connection was closed here; `unwritten` pieces were claimed and not written whole. Returns
  /// the final report for the peer.
  RailReport close(std::uint16_t rail, std::deque<Claims::Chunk> unwritten);
  /// Takes what the peer reports of the current connection, which this rank has closed if the
  /// report is final. Returns the pieces that it has; throws Error(data) for more than were
  /// written, or fewer than it has reported before.
  std::vector<Claims::Chunk> reported(const RailReport& report,
                                      Clock::time_point now = Clock::now());
  /// Returns the time from the claim of a piece to its report: of the last one that was reported,
  /// or, where it has waited longer, of the oldest one that was not; nothing before the first.
  std::optional<Duration> latency(Clock::time_point now) const;
  /// Returns a copy of the oldest piece that waits, to be claimed again: whichever copy the peer
  /// reports first counts. Returns nothing where it was claimed no more than `longest` ago, or
  /// twice that for each time that it was moved before.
  std::optional<Claims::Chunk> move_late(Clock::time_point now, Duration longest);
  /// Returns the pieces that the peer's final report has shown to be lost, to be claimed again.
  std::vector<Claims::Chunk> take_lost() { return std::exchange(lost_, {}); }
  /// Begins with the next connection. To be called in kClosed.
  void reopen();
  /// Forgets all pieces: they are not sent again. Adds their messages to `dropped`.
  void drop_all(std::vector<std::shared_ptr<Claims::Message>>& dropped);
  /// Copies the bodies of the pieces of a stream, so that the callers' memory is released.
  void adopt(Claims& claims, Stream stream);
  void release_all(Claims& claims);
  /// Forgets all pieces without releasing their memory, also those that are written from now on:
  /// the peer reports nothing more.
  void abandon() {
    forget_unreported();
    abandoned_ = true;
  }

 private:
  static bool is_waiting(const Claims::Chunk& piece) {
    return !piece.moved && !piece.is_delivered();
  }
  std::size_t first_waiting() const;
  void forget_unreported();

  State state_ = State::kOpen;
  std::uint16_t connection_ = 0;
  /// In the order written. Those that were moved have no message.
  std::deque<Claims::Chunk> unreported_;
  /// None before it waits. Those behind it may not, either: what does not wait never will.
  mutable std::size_t first_waiting_ = 0;
  std::optional<Duration> latency_;
  std::uint64_t written_ = 0;   ///< pieces, over this connection
  std::uint64_t reported_ = 0;  ///< of them, by the peer
  std::uint64_t received_ = 0;
  std::uint64_t told_ = 0;  ///< of those received
  std::vector<Claims::Chunk> lost_;
  bool abandoned_ = false;
};

}  // namespace shoal::wire
