#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/assembler.h"
#include "shoal/wire/flow_message.h"
#include "shoal/wire/stream_map.h"
#include "shoal/wire/transport.h"
#include "shoal/wire/turns.h"

namespace shoal::wire {

/// The messages for one peer that wait to be sent. Whichever connection has room claims the next
/// chunk of them. Streams take turns chunk by chunk, those of higher priority first; what a stream
/// sends is claimed in the order in which it was sent.
///
/// A single connection claims chunks of any kind. The first one of several claims small messages,
/// and of each large one an announcement, a header without bytes; the others claim the large ones
/// piece by piece. Announcements are counted on both sides: the n-th one, from 0, is that of
/// message n, whose pieces name it. So the first connection decides the order of a stream's
/// messages, and pieces may arrive in any order.
///
/// At most kMostBegun large messages are on their way at a time, because the receiver keeps an
/// account of each. Not thread-safe.
class Claims {
 public:
  static constexpr std::size_t kMostBegun = 1024;
  /// Larger messages travel in pieces where there are several connections.
  static constexpr std::size_t kMostSmall = 16 << 10;

  struct Message {
    Bytes head;
    std::span<const std::byte> body;
    Bytes own_body;  ///< holds `body` once it is adopted
    Released released;
    std::size_t unwritten = 0;  ///< chunks that are claimed and not yet written
    bool all_claimed = false;
    std::size_t bytes() const { return head.size() + body.size(); }
  };
  /// What several copies of one piece have in common.
  struct Copies {
    std::shared_ptr<Message> message;
    bool delivered = false;  ///< the peer has one of them
  };
  /// Bytes `[begin, begin + bytes)` of a message and the header in front of them.
  struct Chunk {
    std::array<std::byte, Assembler::kHeaderBytes> header;
    Stream stream;
    std::shared_ptr<Message> message;
    std::size_t begin = 0;
    std::size_t bytes = 0;
    std::size_t sent = 0;  ///< header included
    Clock::time_point claimed{};
    /// Set once it is claimed again while this copy may still arrive.
    std::shared_ptr<Copies> copies;
    /// Another copy may be claimed again, not this one: `message` is null, or has a copy of the
    /// bytes.
    bool moved = false;
    int moves = 0;  ///< how often a copy was made

    bool is_delivered() const { return copies && copies->delivered; }
    /// Returns a copy that takes the place of this one.
    Chunk move();

    /// Returns true where it was claimed more than `longest` ago, twice that after each move.
    bool is_late(Clock::time_point now, Duration longest) const {
      constexpr int kMostDoublings = 16;
      return now - claimed > longest * (1 << std::min(moves, kMostDoublings));
    }
  };
  /// kControl: what the transport says itself, as far as it goes before all else. kFirstReports:
  /// of that only reports of the first connection.
  enum class Kind : std::uint8_t { kAny, kSmall, kPiece, kControl, kFirstReports };

  /// `in_pieces`: there are several connections.
  explicit Claims(bool in_pieces = false) : in_pieces_(in_pieces) {}
  Claims(Claims&&) = default;

  /// As Transport::send. A message of group 0 is never large.
  void send(Stream stream, int priority, Bytes head, std::span<const std::byte> body,
            Released released);
  /// Returns the next chunk of that kind; nothing where there is none that may be sent.
  std::optional<Chunk> claim(Kind kind);
  /// Tells that the memory of the chunk is not read again: the kernel has taken all of it, and
  /// where it may have to be sent again, the peer has it.
  void wrote(const Chunk& chunk);
  /// Has pieces claimed again, before all others: the connection that has claimed them is lost, or
  /// slow.
  void take_back(std::vector<Chunk> pieces);
  /// As Link::obey.
  void obey(const FlowMessage& message);

  /// Copies what is still to be claimed of a stream, so that the callers' memory is released.
  void adopt(Stream stream);
  void copy_body(Message& message);
  void release(Message& message);
  /// Drops all messages but those of group 0, and releases their memory.
  void drop_all();
  /// Drops all messages without releasing their memory.
  void abandon();
  /// Releases the memory of all messages.
  void release_all();

  /// Returns true where a piece may be claimed.
  bool has_pieces() const { return !returned_.empty() || !lines_[kPieces].empty(); }
  bool idle() const { return queues_.empty() && returned_.empty(); }
  bool idle(Stream stream) const { return !queues_.contains(stream); }
  /// Count the chunks that were claimed, and the messages whose memory was released.
  std::uint64_t claimed() const { return claimed_; }
  std::uint64_t releases() const { return releases_; }

 private:
  /// The place where a stream waits: for its next chunk, among those whose announced message is
  /// claimed in pieces, those whose large message may not begin yet, or those of which the receiver
  /// takes no chunk at present.
  enum Line : std::uint8_t { kReady, kPieces, kLate, kHeld };
  /// The messages of one stream that are still to be divided into chunks.
  struct Queue {
    int priority = 0;
    std::deque<std::shared_ptr<Message>> messages;
    std::size_t at = 0;                   ///< bytes of the first message that are claimed already
    std::optional<std::uint64_t> number;  ///< of the first message, once it is announced
    Line line = kReady;

    /// Its messages are gone, see StreamMap.
    void reset() {
      messages.clear();
      at = 0;
      number.reset();
    }
  };
  using Waiting = StreamMap<Queue>::iterator;
  Waiting next_in(Line line);
  std::optional<Chunk> claim_of(Stream stream);
  Chunk cut(Waiting entry, std::size_t most_bytes);
  Chunk announce(Waiting entry);
  void end_turn(Waiting entry);
  void count_asked(Stream stream, std::size_t bytes);
  bool is_large(Stream stream, const Message& message) const;
  /// Those that were begun before the receiver paused may stay as they are: what it asks for does
  /// not wait for them.
  std::size_t most_begun() const { return paused_ ? Assembler::kMaxOpenStreams : kMostBegun; }
  void let_wait(Stream stream, Queue& queue, Line line);
  static Line line_of(const Queue& queue) { return queue.number ? kPieces : kReady; }

  bool in_pieces_;
  StreamMap<Queue> queues_;
  std::deque<Chunk> returned_;   // pieces that are claimed again
  std::array<Turns, 4> lines_;   // by Line; each stream of queues_ waits in one of them
  std::size_t begun_ = 0;        // messages of which some chunks, not all, are claimed
  std::uint64_t announced_ = 0;  // messages
  bool paused_ = false;
  std::map<Stream, std::uint64_t> asked_;  // while paused: what the receiver takes all the same
  std::uint64_t claimed_ = 0;
  std::uint64_t releases_ = 0;
};

}  // namespace shoal::wire
