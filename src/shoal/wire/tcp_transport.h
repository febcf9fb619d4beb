#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/acceptor.h"
#include "shoal/wire/address.h"
#include "shoal/wire/awake_time.h"
#include "shoal/wire/error_bytes.h"
#include "shoal/wire/inbox.h"
#include "shoal/wire/key_values.h"
#include "shoal/wire/link.h"
#include "shoal/wire/next_speaker.h"
#include "shoal/wire/outgoing_call.h"
#include "shoal/wire/peer_hello.h"
#include "shoal/wire/rail_count.h"
#include "shoal/wire/tls_channel.h"
#include "shoal/wire/tls_mode.h"
#include "shoal/wire/transport.h"

namespace shoal::wire {

/// Holds the TCP connections of this rank to every other rank, and the messages that have arrived
/// on them. Two ranks have one connection, or several where they are far apart (see Link and
/// rail_count.h). The loss of the only one is the loss of the peer. One of several is connected
/// again, and what was lost with it is sent once more. Where that does not succeed for as long as a
/// peer may be silent, the peer is lost; where all are gone at a time, it is lost at once if nobody
/// listens at its address any more.
///
/// Threads: a caller that waits moves the bytes of all connections itself (it is the *driver*).
/// Other callers that wait at the same time sleep until the driver reports an event. When no caller
/// has waited for a millisecond, the transport's own thread moves the bytes. That thread also
/// accepts connections and sends heartbeats, so that a rank that computes for long is not taken for
/// dead.
class TcpTransport final : public Transport {
 public:
  static constexpr std::uint64_t kLeastInboxBytes = 1 << 20;
  struct Options {
    /// Names this set of connections in the store.
    std::string name = "world";
    /// The job's key; the handshake proves that both sides have it.
    std::string key;
    /// The address to listen on, see interface_address; empty: the one that the store knows.
    std::string host;
    PortRange ports;
    /// Where other ranks reach this one, behind an address translator, as advertised_at reads it.
    /// They try the address that it listens on too, for those that are on its side. Empty: there is
    /// only that one.
    std::string advertise = {};
    Duration heartbeat = std::chrono::milliseconds(400);
    /// When no byte has come from a peer for this long (with TLS no whole record, of up to
    /// 16 KiB), the transport fails on all ranks with Error(peer_lost). Likely causes: the peer's
    /// process is suspended, or the network is cut. 0: `silence_for` the round trip to the peer.
    Duration silence{};
    /// The memory for messages that have arrived and for which nobody waits, from all peers
    /// together; each has at least kLeastInboxBytes. A peer that has filled its part sends no more
    /// until some of it is taken, but for what this rank waits for.
    std::uint64_t inbox_bytes = std::uint64_t{256} << 20;
    /// Connections to each lower rank, at most kMostRails: of two ranks the higher one connects, so
    /// its number counts for both. 0: `rails_for` the round trip between them, within the number
    /// of descriptors that this process may open.
    int rails = 0;
    /// Connections that run TLS. Ranks that disagree refuse each other with Error(usage), which
    /// names them.
    TlsMode tls = TlsMode::kAuto;
    /// A wait spins for a moment before it sleeps, where every rank of this host has a core: an
    /// answer often comes within microseconds. A thread beside one that computes sets this to
    /// false: what it spins is taken from the other.
    bool spins = true;
    /// Is called now and then while this rank connects, by any of its threads. It may throw an
    /// Error to give up.
    std::function<void()> may_go_on = {};
  };
  /// Connects to the other ranks, whose addresses are in the store. Throws Error(timeout), which
  /// names the ranks that have not connected by `deadline`.
  TcpTransport(const Options& options, KeyValues& store, int rank, int size, Deadline deadline);
  /// Calls `leave`, unless that was done, and waits until the peers have acknowledged everything,
  /// and up to a second more until they have closed their connections too, which they do when they
  /// read the end of this one. A peer that acknowledges nothing for 5 seconds is not waited for,
  /// and nobody for more than two minutes.
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  /// Tells the other ranks that this rank waits for none of them any more, so that its end is no
  /// failure.
  void leave();

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool send(int peer, Stream stream, int priority, Bytes message) {
    return send(peer, stream, priority, std::move(message), {}, nullptr);
  }
  bool send(int peer, Stream stream, int priority, Bytes head, std::span<const std::byte> body,
            Released released) override;
  void flush() override;
  std::optional<ReceivedChunk> take(int peer, Stream stream) override;
  bool has_arrived(int peer, Stream stream) override;
  void post_receive(int peer, Stream stream, std::shared_ptr<PostedReceive> receive) override;
  void release_buffers(Stream stream) override;
  bool gone(int peer) const override;
  void check() const override;
  void abort(const Error& cause) override;
  std::uint64_t events() const override { return events_.load(std::memory_order_acquire); }
  void wait_for_event(std::uint64_t seen, Duration limit) override;
  void answer_for(std::uint64_t group, std::function<Bytes()> answer) override;
  std::vector<std::optional<Bytes>> ask(std::uint64_t group, Duration longest) override;
  std::uint64_t bytes_sent(int peer) const override;
  std::uint64_t bytes_received(int peer) const;
  /// Returns how many connections there are to `peer`; 0 where they are closed.
  int rails(int peer) const override;
  /// By the kernel's clock, on rail 0, within the last five minutes; zero while there is none.
  Duration round_trip(int peer) const override;
  /// Counts the connections that have taken the place of a first one, to any peer.
  std::uint64_t first_rails_replaced() const;
  /// Returns true where what goes to and comes from `peer` is encrypted.
  bool encrypted(int peer) const;
  /// Returns the bytes that have come from `peer` and for which nobody has waited yet, with what
  /// waits for missing pieces, as they count against the peer's part of the inbox.
  std::uint64_t waiting_bytes(int peer) const;
  /// Counts how often this rank has told a peer to pause, because what it had sent filled its part
  /// of the inbox.
  std::uint64_t pauses() const;

 private:
  class PeerSink;
  struct RailState {
    std::uint32_t watched_events = 0;  ///< events that epoll watches
    bool ended = false;                ///< nothing more is read from it
    std::uint64_t acknowledged = 0;    ///< bytes that the peer's kernel has, at the last heartbeat
    Duration last_progress{};          ///< when none was outstanding or it grew, as `awake_` counts
  };
  /// Rail 0, or all other rails, where they are lost.
  struct Missing {
    std::optional<Duration> since;  ///< as `awake_` counts; empty where they are not missing
    std::optional<Error> why;       ///< of the last loss
  };
  struct Peer {
    std::unique_ptr<Link> link;  ///< null before rail 0 is connected and after all are closed
    std::vector<RailState> rails;
    std::uint32_t connection = 0;  ///< as in PeerHello
    PeerId id;                     ///< that all its connections have
    bool encrypted = false;
    Inbox inbox;
    bool unflushed = false;
    Duration last_heard{};      ///< when a byte came last, as `awake_` counts
    bool says_goodbye = false;  ///< what it has sent before may still be on its way on other rails
    bool goodbye = false;
    std::optional<Endpoint> address;   ///< of a lower rank, to which this one connects
    std::optional<Endpoint> listener;  ///< of a higher rank, where it says one
    bool listener_answers = false;     ///< it has answered once, so it can be asked
    bool refused = false;              ///< nobody listens there, since rail 0 was lost
    Missing first_rail;                ///< until it has carried something again
    Missing other_rails;               ///< until one of them is there
    bool was_ready = false;            ///< all its rails have been there
    Duration round_trip{};             ///< when rail 0 was lost
    bool goodbye_due = false;          ///< this rank's goodbye follows what is queued
    bool finished = false;             ///< nothing more is sent there
    bool end_sent = false;             ///< and the kernel has what says so
    bool gone = false;                 ///< the connection was closed
    // While this rank stops:
    std::uint64_t progress = 0;       ///< see progress_of
    Clock::time_point last_progress;  ///< when that number last changed
    std::optional<Bytes> answer;      ///< to the open question
  };
  /// A rail that is to be connected again.
  struct Redial {
    std::unique_ptr<OutgoingCall> call;  ///< null between two calls
    int socket = -1;                     ///< that of the call
    bool asks = false;                   ///< it only asks whether anybody listens there
    std::uint16_t number = 0;            ///< of the connection that the call makes
    Clock::time_point not_before;        ///< when the next one may begin
  };
  /// Marks the eventfd in an epoll event, whose number is otherwise a rank.
  static constexpr std::uint32_t kWake = ~std::uint32_t{0};
  /// The thread looks so often whether pieces are late.
  static constexpr Duration kLookForLate = std::chrono::milliseconds(10);
  static constexpr Duration kMaxWait = std::chrono::milliseconds(250);

  std::string key_of_address(int rank) const;
  void check_and_ask() const;
  std::string refused_callers() const;
  Error did_not_come(const std::string& ranks) const;
  void connect_to_ranks(KeyValues& store, int first, int last, Deadline deadline);
  PeerHello connect_first_rail(int rank, const std::vector<Endpoint>& addresses, Deadline deadline);
  void connect_rail(int rank, PeerHello& hello, Deadline deadline);
  bool is_awaited(int rank, const PeerHello& hello) const;
  std::unique_ptr<Channel> call(int rank, const std::vector<Endpoint>& addresses, PeerHello& hello,
                                Deadline deadline);
  std::unique_ptr<Channel> try_call(int rank, const Endpoint& address, PeerHello& hello,
                                    Deadline deadline, const std::function<void()>& may_go_on);
  void check_answer(int rank, const PeerHello& hello, const PeerHello& answer) const;
  std::shared_ptr<const TlsContext> context_of_call(int socket) const;
  PeerHello own_hello() const;
  Error other_tls(int rank, TlsMode theirs) const;
  void refuse_other_tls(const PeerHello& hello);
  std::unique_ptr<Channel> channel_of_caller(Descriptor socket, const Hello& hello);
  void admit(std::unique_ptr<Channel> channel, const Hello& hello);
  void add_peer(const PeerHello& hello, int rank, std::unique_ptr<Channel> channel);
  void add_rail(int rank, int rail, std::unique_ptr<Channel> channel);
  void add_first_rail(int rank, std::uint8_t number, std::unique_ptr<Channel> channel);
  void begin_rail(int rank, int rail);
  void set_up(int socket, int rank, int rail, int rails);
  void watch_rail(int rank, int rail, std::uint32_t events);
  void await_all(Deadline deadline);
  void run();
  bool run_once(bool& watching);
  void fail_of_itself(const char* what);
  void stop();
  bool finish_sending(Clock::time_point now);
  bool is_done(int peer, Clock::time_point now);
  static std::uint64_t acknowledged_by(const Peer& peer);
  static std::uint64_t progress_of(const Peer& peer);
  static std::uint64_t acknowledged_on(const Peer& peer, int rail);
  void find_stuck_rails();
  void watch_connections(bool watch);
  void move_bytes(std::unique_lock<std::mutex>& lock, Duration limit);
  void serve(int peer, int rail, std::uint32_t events);
  void note_arrivals(int peer);
  bool may_end(const Peer& peer) const;
  void end_of_rail(int peer, int rail, const Error& how);
  void lose_rail(int peer, int rail, const Error& how);
  void drop_first_rail(int peer, const Error& how);
  void lose_peer(int peer, const Error& how);
  bool replaces_first_rail(const Peer& peer) const;
  bool admits_first_rail(const Peer& peer, const PeerHello& hello) const;
  void replace_first_rail(int peer, std::uint8_t number, std::unique_ptr<Channel> channel);
  void obey_first_report(int peer, const ReceivedChunk& report);
  void report_first_rail(int peer, bool at_once);
  bool first_rail_is_stuck(const Peer& peer) const;
  bool others_get_through(const Peer& peer) const;
  void keep_up_without_first_rail();
  void tell_listener(int peer);
  void keep_listener(int peer, const ReceivedChunk& message);
  void note_refusal(int peer);
  void note_answer(int peer, bool answers);
  void end_if_unreachable(int peer);
  void note_loss(Missing& missing, const Error& how) const;
  void obey_report(int peer, const ReceivedChunk& report);
  void report_pieces(int peer);
  bool send_late_again();
  bool wants_rails(const Peer& peer) const;
  Duration silence_of(const Peer& peer) const;
  bool outlasts_silence(const Peer& peer, Duration time) const;
  void fail_without_rails();
  void connect_again(int peer, int rail);
  void take_lost_rails();
  bool waits_for_call(int peer, int rail) const;
  std::uint16_t number_of_call(const Peer& peer, int rail) const;
  Duration redial();
  void hang_up(Redial& redial);
  void begin_redial(int peer, int rail, Redial& redial);
  void watch_redial(int peer, int rail, const Redial& redial);
  void advance_redial(int peer, int rail);
  void deliver(int peer, Stream stream, ReceivedChunk chunk, std::size_t bytes);
  void handle_control(int peer, std::uint64_t what, const ReceivedChunk& chunk);
  void answer_question(int peer, const ReceivedChunk& question);
  void keep_answer(int peer, const ReceivedChunk& answer);
  void send_flow_messages(int peer);
  void send_heartbeats();
  void fail(const Error& cause);
  void close(int peer);
  void flush_peer(int peer);
  void send_control(std::uint64_t what, const Bytes& message);
  void signal_event();
  void wake_driver();

  const Options options_;
  const int rank_;
  const int size_;
  const std::shared_ptr<const TlsContext> tls_;  ///< see context_for
  const std::shared_ptr<ChunkPool> pool_;
  int most_rails_ = kMostRails;  ///< to one peer, where their number is open
  std::string listens_at_;       ///< set before there is a thread
  /// Guards all members below except atomics, and `loop_`, `acceptor_` and `redials_`, which belong
  /// to the thread.
  mutable std::mutex mutex_;
  std::condition_variable changed_;  ///< wakes the callers that wait while another one drives
  std::atomic<std::uint64_t> events_{0};
  std::vector<Peer> peers_;
  std::map<std::uint64_t, std::function<Bytes()>> answers_;
  std::optional<std::uint64_t> asked_;  ///< the group of the open question
  std::optional<Error> failure_;        ///< set once, before `failed_`
  std::atomic<bool> failed_{false};
  Clock::time_point next_heartbeat_;
  Clock::time_point next_look_for_late_;
  bool may_have_late_ = false;  ///< at the last look
  AwakeTime awake_;
  bool left_ = false;
  std::optional<Clock::time_point> stopping_;  ///< since when
  Descriptor ready_;                           ///< an epoll set of all connections and of `wake_`
  Descriptor wake_;                            ///< an eventfd that ends the driver's wait
  std::uint64_t pauses_ = 0;
  std::uint64_t first_rails_replaced_ = 0;
  bool driving_ = false;
  std::vector<int> reports_due_;   ///< peers from which pieces have come since the last reports
  NextSpeaker next_speaker_;       ///< read before the others by a driver that spins
  int waiters_ = 0;                ///< callers that wait for the driver's events
  Clock::time_point last_driven_;  ///< when a driver last stopped
  int ranks_here_ = 1;
  bool spins_ = true;  ///< a driver spins before it sleeps: every rank of this host has a core
  EventLoop loop_;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
  std::vector<std::pair<int, int>> lost_rails_;    ///< by peer, for the thread to connect again
  std::map<std::pair<int, int>, Redial> redials_;  ///< those that it connects; the thread's alone
};

}  // namespace shoal::wire
