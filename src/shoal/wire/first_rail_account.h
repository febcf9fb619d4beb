#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/wire/claims.h"
#include "shoal/wire/rail_report.h"
#include "shoal/wire/tcp_control.h"

namespace shoal::wire {

/// Keeps the books of rail 0, where a link has several rails. What it carries has an order, so it
/// is sent again on rail 0 alone: each chunk is kept, in memory of its own, until the peer has
/// reported it. When the connection breaks and another one takes its place, each side says there
/// first how much it has, and the other side goes on behind that. Chunks are counted over all
/// connections. No socket. docs/notes/rails.md has the states.
class FirstRailAccount {
 public:
  using Chunks = std::deque<Claims::Chunk>;

  /// Beyond so many bytes that are not reported, messages of operations wait; what ranks say to
  /// keep up the connection waits at twice that. Each chunk counts as its bytes and kChunkCost.
  static constexpr std::size_t kMostUnreportedBytes = 16 << 20;
  static constexpr std::size_t kChunkCost = 512;
  /// So many chunks of which none is urgent are reported together.
  static constexpr std::uint64_t kMostUntold = 64;

  /// Reports of rail 0 itself: they have no place in its order, are not counted, and are not sent
  /// again.
  static constexpr Stream kReports{0, kFirstRail};
  static bool has_place(Stream stream) { return stream != kReports; }

  enum class State : std::uint8_t {
    kOpen,      ///< it has a connection
    kLost,      ///< it has none
    kResuming,  ///< it has one, on which the peer has not yet said how much it has
  };
  State state() const { return state_; }
  /// Returns the number of the current connection, or of the last one. The first one has the number
  /// 0, which no other one has: a process that has never had it can tell the others from it. Those
  /// that follow have 1 to 255, and then 1 again.
  std::uint8_t connection() const { return connection_; }
  std::uint8_t next_connection() const;
  /// Returns true where a connection of that number may take the place of the current or last one:
  /// a later one, or the last one, which is lost on this side.
  bool may_follow(std::uint8_t number) const;

  /// The kernel has taken all of a chunk, whose memory is its own.
  void wrote(Claims::Chunk chunk);
  bool is_full() const { return unreported_bytes_ >= kMostUnreportedBytes; }
  bool is_over_full() const { return unreported_bytes_ >= 2 * kMostUnreportedBytes; }
  /// Returns true where the peer has not reported everything that is worth waiting for, or where
  /// something waits for the next connection. Heartbeats and reports are not worth it.
  bool waits() const { return awaited_ > 0 || !unwritten_.empty(); }

  /// Counts a chunk that has come.
  void received(Stream stream);
  /// Returns the report that is due; all that has come is worth one where it is due `at_once`.
  std::optional<RailReport> report(bool at_once);
  /// Takes what the peer reports: how many chunks it has of all. Throws Error(data) for more than
  /// were written. An earlier number says nothing new.
  void reported(const RailReport& report);

  /// The connection is lost; `unwritten` chunks were claimed and not written whole.
  void lost(Chunks unwritten);
  /// There is another connection, with that number. Returns what this side says first on it.
  RailReport reopen(std::uint8_t connection);
  /// Takes what the peer has said first on the new connection. Returns what is to be written before
  /// all else: what it does not have, in order. Throws as `reported`.
  Chunks resume(const RailReport& report);
  /// Returns true where the last loss is mended: the peer has said how much it has, and since then
  /// or by that it has more than before the loss, or there was nothing to be sent again.
  bool got_on() const {
    return state_ == State::kOpen && (!sent_again_ || reported_ > reported_when_lost_);
  }

  /// Forgets all chunks: they are not sent again, and rail 0 is not replaced from now on. What the
  /// peer reports then says nothing.
  void abandon();
  bool abandoned() const { return abandoned_; }
  /// As `abandon`. Adds the messages whose memory is the caller's to `dropped`.
  void drop_all(std::vector<std::shared_ptr<Claims::Message>>& dropped);
  /// Copies the bodies of the chunks of a stream, so that the callers' memory is released.
  void adopt(Claims& claims, Stream stream);
  void release_all(Claims& claims);

 private:
  static bool is_awaited(Stream stream);
  static std::size_t cost_of(const Claims::Chunk& chunk) { return chunk.bytes + kChunkCost; }
  RailReport own_report();

  State state_ = State::kOpen;
  std::uint8_t connection_ = 0;
  Chunks unreported_;  ///< in the order written
  std::size_t unreported_bytes_ = 0;
  std::size_t awaited_ = 0;  ///< of these chunks
  Chunks unwritten_;         ///< behind them, while there is no connection
  std::uint64_t written_ = 0;
  std::uint64_t reported_ = 0;  ///< of those written, by the peer
  std::uint64_t reported_when_lost_ = 0;
  bool sent_again_ = false;  ///< something of what was lost last
  std::uint64_t received_ = 0;
  std::uint64_t told_ = 0;  ///< of those received
  bool urgent_ = false;     ///< the peer waits for the report of one that was received
  bool abandoned_ = false;
};

}  // namespace shoal::wire
