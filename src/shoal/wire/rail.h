#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/wire/assembler.h"
#include "shoal/wire/channel.h"
#include "shoal/wire/claims.h"
#include "shoal/wire/closed_in_children.h"
#include "shoal/wire/first_rail_account.h"
#include "shoal/wire/rail_account.h"

namespace shoal::wire {

/// One connection of a Link: writes the chunks that it claims, and reads into its Assembler. The
/// socket is closed in processes that this one forks. Not thread-safe.
class Rail {
 public:
  /// Of a rail whose connection is replaced where it breaks, `account` gets what was written, or
  /// `first` where it is the first of several.
  Rail(std::unique_ptr<Channel> channel, Assembler assembler, RailAccount* account = nullptr,
       FirstRailAccount* first = nullptr)
      : channel_(std::move(channel)),
        guard_(channel_->fd()),
        assembler_(std::move(assembler)),
        account_(account),
        first_(first) {}
  int fd() const { return channel_->fd(); }
  Assembler& assembler() { return assembler_; }

  /// Claims and writes chunks until there is none, or the kernel takes no more: then it returns
  /// false. Throws Error(peer_lost).
  bool flush(Claims& claims, Claims::Kind kind);
  /// Claims one chunk at most, unless the kernel took no more the last time and `writable` was not
  /// called since. Throws Error(peer_lost).
  void flush_one(Claims& claims, Claims::Kind kind);
  /// Queues why this side has failed, on a rail of pieces: at most Assembler::kPieceBytes.
  void send_last_words(const Bytes& words);
  /// Queues a sign of life on a rail of pieces that has nothing else to write.
  void send_beat();
  /// Queues what is said before all else on a connection that takes the place of the first one.
  void send_first(const RailReport& report);
  /// Queues chunks that were claimed for the connection before.
  void resend(std::deque<Claims::Chunk> chunks);
  bool blocked() const { return blocked_; }
  bool broken() const { return broken_; }
  void set_broken() { broken_ = true; }
  /// Returns why writing has failed first; empty where it has not. The kernel tells it once: who
  /// writes again is told of a broken pipe, and who reads meets an end without a reason.
  const std::string& write_failure() const { return write_failure_; }
  void set_write_failure(const std::string& why) {
    if (write_failure_.empty()) write_failure_ = why;
  }
  void writable() { blocked_ = false; }
  /// Ends this direction. Returns false where it has to be called again, because the kernel has no
  /// room now.
  bool finish_sending() { return channel_->finish_sending(); }

  /// Reads once what is there, up to about a chunk. Returns false at the end of the connection.
  /// Throws Error(peer_lost) or Error(data).
  bool receive(ChunkSink& sink);
  /// As above, for whole messages, and as long as there is something.
  bool receive(const std::function<void(Stream, Bytes)>& message);

  /// As RailAccount::move_late, for the piece that is being written. The rest of it is written from
  /// a copy, because the receiver counts its bytes.
  std::optional<Claims::Chunk> move_late(Clock::time_point now, Duration longest);
  /// Returns true where a piece is being written that may be moved.
  bool writes_piece() const {
    return !writing_.empty() && !writing_.front().moved && writing_.front().stream.group != 0;
  }
  /// The peer has another copy of a piece: the memory of this one is not read any more.
  void give_up(const std::shared_ptr<Claims::Copies>& copies);

  /// Returns what was claimed and not written whole, in order, and forgets it, but for what the
  /// next connection need not carry.
  std::deque<Claims::Chunk> take_unwritten();

  void adopt(Claims& claims, Stream stream);
  /// Drops the chunks of which nothing is written, but for group 0. One that is partly written is
  /// completed from a copy, because the receiver counts its bytes. Adds the messages of both to
  /// `dropped`: the caller releases them when all connections have made their copies.
  void drop_all(std::vector<std::shared_ptr<Claims::Message>>& dropped);
  void abandon();
  void release_all(Claims& claims);
  /// Returns true when nothing is left that can be written: a broken connection takes no more, but
  /// one that is replaced has its pieces claimed by others.
  bool idle() const {
    const bool replaced = account_ || (first_ && !first_->abandoned());
    return (writing_.empty() && !channel_->holds_unsent()) || (broken_ && !replaced);
  }
  bool idle(Stream stream) const;
  std::uint64_t bytes_sent() const { return bytes_sent_; }  ///< headers included
  std::uint64_t bytes_received() const { return bytes_received_; }

 private:
  /// So many bytes are claimed ahead of time: enough for one sendmsg, and few enough that an urgent
  /// message does not wait long behind them.
  static constexpr std::size_t kBytesAhead = 512 << 10;
  static constexpr std::size_t kMaxChunksAhead = 8;
  bool claim(Claims& claims, Claims::Kind kind);
  std::optional<Claims::Kind> may_claim(Claims::Kind kind) const;
  void keep(Claims& claims, Claims::Chunk& chunk);
  void queue(Claims::Chunk chunk);
  bool write_some(Claims& claims);
  void wrote(Claims& claims, std::size_t bytes);
  static void keep_alone(Claims::Chunk& chunk);
  void write_from_copy();
  bool receive_some(const std::function<void(std::size_t, std::span<const std::byte>)>& took);

  std::unique_ptr<Channel> channel_;
  ClosedInChildren guard_;
  Assembler assembler_;
  RailAccount* account_;
  FirstRailAccount* first_;
  std::deque<Claims::Chunk> writing_;
  std::size_t writing_bytes_ = 0;
  bool blocked_ = false;
  bool broken_ = false;
  std::string write_failure_;
  Bytes buffer_;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
};

}  // namespace shoal::wire
