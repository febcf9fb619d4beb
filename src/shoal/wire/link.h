#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/assembler.h"
#include "shoal/wire/channel.h"
#include "shoal/wire/claims.h"
#include "shoal/wire/first_rail_account.h"
#include "shoal/wire/flow_message.h"
#include "shoal/wire/gathering.h"
#include "shoal/wire/local_rendezvous.h"
#include "shoal/wire/rail.h"
#include "shoal/wire/rail_account.h"
#include "shoal/wire/rail_report.h"
#include "shoal/wire/transport.h"

namespace shoal::wire {

/// The connections to one peer, which carry many streams: one, or several *rails* over a long
/// distance, where one carries less than the link could. Large messages are sent in chunks that
/// take turns, those of higher priority first, so that a small message waits for at most one chunk
/// of each stream. With several rails the first one, rail 0, carries small messages alone, so that
/// they do not wait behind large ones at all, and the pieces of large ones go to whichever other
/// rail has room (see Claims and Gathering). Both ends have the same number. Not thread-safe.
class Link {
 public:
  explicit Link(std::unique_ptr<Channel> channel, std::uint64_t most_bytes = std::uint64_t{1} << 42,
                std::shared_ptr<ChunkPool> pool = nullptr, int rails = 1);
  /// With the bytes of `socket` as they are.
  explicit Link(Descriptor socket, std::uint64_t most_bytes = std::uint64_t{1} << 42,
                std::shared_ptr<ChunkPool> pool = nullptr, int rails = 1);
  /// Releases all memory that is still to be sent.
  ~Link();
  Link(Link&&) = default;

  /// Adds a connection. Rails from 1 on may come in any order, and again once they are lost and the
  /// peer has told what it has received.
  void add_rail(int rail, std::unique_ptr<Channel> channel);
  void add_rail(int rail, Descriptor socket);
  /// Adds a connection that takes the place of the first rail's, which is lost. `number`: see
  /// FirstRailAccount::connection.
  void add_first_rail(std::unique_ptr<Channel> channel, std::uint8_t number);
  /// Closes the connection of a rail other than the first. Returns what the peer is to be told,
  /// which closes its end too. What was sent there and has not arrived is claimed again once the
  /// peer has reported what it has. docs/notes/rails.md has the states.
  RailReport lose_rail(int rail);
  /// Closes the connection of the first of several rails. What was sent there and has not arrived
  /// is sent again when there is another one.
  void lose_first_rail();
  /// Returns null for a single rail.
  const FirstRailAccount* first_account() const { return first_.get(); }
  /// Returns true where the first rail is replaced when it is lost: of several, as long as what was
  /// lost with it is still known.
  bool replaces_first_rail() const { return first_ && !first_->abandoned(); }
  /// Counts a connection that a rail without one has had only on the peer's side. Returns what the
  /// peer is to be told.
  RailReport skip_connection(int rail);
  /// Takes what the peer reports of a rail; the connection is closed here if the report is final.
  /// Throws Error(data).
  void obey(const RailReport& report);
  /// The peer reports nothing more: it has left.
  void await_no_reports();
  /// Returns the report that is due of a rail other than the first.
  std::optional<RailReport> report(int rail);
  /// Returns the report that is due of the first of several; where it is due `at_once`, of all that
  /// has come.
  std::optional<RailReport> report_first_rail(bool at_once);
  const RailAccount& account(int rail) const { return accounts_[static_cast<std::size_t>(rail)]; }
  int rails() const { return static_cast<int>(rails_.size()); }
  bool has_rail(int rail) const { return rails_[static_cast<std::size_t>(rail)] != nullptr; }
  bool has_any_rail() const;
  /// Returns true once all rails are there.
  bool ready() const;
  int fd(int rail = 0) const { return rails_[static_cast<std::size_t>(rail)]->fd(); }

  /// Queues a message.
  void send(Stream stream, int priority, Bytes message);
  /// Queues a message of `head` and `body`. `body` is not copied: it is read until `released`.
  void send(Stream stream, int priority, Bytes head, std::span<const std::byte> body,
            Released released);
  /// Writes what the kernel and the receiver take. Returns false when the kernel takes no more on
  /// some rail. Throws Error(peer_lost) where the only rail is broken. A broken one of several is
  /// shut down, so that whoever waits for it to be readable finds it.
  bool flush();
  /// Has pieces claimed again that one rail has not delivered, though another one would have long
  /// ago: whichever copy comes first counts. So a rail that is slow, or waits to repeat a packet,
  /// delays nobody for long. To be called now and then while `may_have_late`, before `flush`.
  void send_late_again(Clock::time_point now);
  /// Returns true where a piece waits for its report, or is partly written.
  bool may_have_late() const;
  bool awaits_reports() const;
  /// Counts the pieces that were sent again because they were late.
  std::uint64_t sent_again() const { return sent_again_; }
  /// Returns true where the kernel took no more on this rail. `writable` says that it does again.
  bool blocked(int rail) const { return rails_[static_cast<std::size_t>(rail)]->blocked(); }
  void writable(int rail) { rails_[static_cast<std::size_t>(rail)]->writable(); }
  /// Returns true where writing to one of several rails has failed.
  bool broken(int rail) const { return rails_[static_cast<std::size_t>(rail)]->broken(); }
  void set_broken(int rail) { rails_[static_cast<std::size_t>(rail)]->set_broken(); }
  /// As in Rail.
  const std::string& write_failure(int rail) const {
    return rails_[static_cast<std::size_t>(rail)]->write_failure();
  }
  /// Ends this direction: behind what was written the peer reads the end of each connection.
  /// Returns false where it has to be called again, because the kernel has no room now.
  bool finish_sending();
  /// Reads once what is there on a rail, up to about a chunk. Returns false at the end of the
  /// connection. Throws Error(peer_lost) or Error(data).
  bool receive(int rail, ChunkSink& sink);
  bool receive(ChunkSink& sink) { return receive(0, sink); }
  /// As above, for whole messages; where there is one rail.
  bool receive(const std::function<void(Stream, Bytes)>& message);
  void forget_places(std::optional<Stream> stream = std::nullopt);
  /// Returns true where a part of a chunk has come on the first rail, and the rest has not.
  bool is_within_chunk() const { return rails_[0] && rails_[0]->assembler().within_chunk(); }
  /// Returns true when every message that was announced has been received.
  bool complete() const { return gathering_.complete(); }
  /// Returns the bytes that have been received and wait for others of their stream.
  std::uint64_t held_bytes() const { return gathering_.held_bytes(); }

  /// Follows what the receiver says about the messages that it can take. While it has paused, only
  /// streams of group 0 and what it asks for are sent.
  void obey(const FlowMessage& message) { claims_.obey(message); }

  /// Queues why this side has failed on all rails but the first, which carries it as a message:
  /// whichever comes first tells the peer. Words longer than a piece are left to the first.
  void send_last_words(const Bytes& words);
  /// Has the peer hear on all rails but the first that this side lives.
  void send_beats();

  /// Copies what is still to be sent of a stream, so that the callers' memory is released.
  void adopt(Stream stream);
  /// Drops all messages but those of group 0. A chunk that is partly written is completed from a
  /// copy of the chunk, because the receiver counts its bytes.
  void drop_all();
  /// Drops all messages without releasing their memory: what waits for it learns by other means
  /// that it was never sent.
  void abandon();

  /// Returns true when nothing is left to be written, of any stream or of one.
  bool idle() const;
  bool idle(Stream stream) const;
  std::uint64_t bytes_sent() const;          ///< headers included
  std::uint64_t bytes_sent(int rail) const;  ///< over its current connection
  std::uint64_t bytes_received() const;
  /// Counts the messages whose memory was released.
  std::uint64_t releases() const { return claims_.releases(); }

 private:
  Assembler assembler(int rail) const;
  void obey_first_rail(const RailReport& report);
  bool flush_only_rail();
  std::optional<Duration> least_latency(Clock::time_point now) const;
  void supersede(std::uint64_t message, std::uint64_t offset);

  std::uint64_t most_bytes_;
  std::shared_ptr<ChunkPool> pool_;
  Claims claims_;
  Gathering gathering_;
  std::vector<RailAccount> accounts_;        ///< by rail; that of the first is of no use
  std::unique_ptr<FirstRailAccount> first_;  ///< its account, where there are others
  std::vector<std::unique_ptr<Rail>> rails_;
  std::uint64_t lost_bytes_sent_ = 0;  ///< over connections that are lost
  std::uint64_t lost_bytes_received_ = 0;
  std::size_t turn_ = 0;  ///< the rail that may claim a piece next
  std::uint64_t sent_again_ = 0;
};

}  // namespace shoal::wire
