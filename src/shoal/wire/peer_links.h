#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/acceptor.h"
#include "shoal/wire/address.h"
#include "shoal/wire/event_loop.h"
#include "shoal/wire/link.h"
#include "shoal/wire/outgoing_call.h"
#include "shoal/wire/peer_id.h"
#include "shoal/wire/tls_channel.h"
#include "shoal/wire/tls_mode.h"

namespace shoal::wire {

/// Connections between processes that know each other by their ids and come and go. They carry
/// small messages that may be lost: whoever sends repeats what it gets no answer to.
///
/// A connection is made when there is something to send, by either side, and used by both. One that
/// breaks is made again with the next message. Messages wait for it in a queue of bounded size,
/// from which the oldest are dropped. The death of a peer is not noticed here; what its host says
/// of it is passed on.
///
/// Both ends prove that they know the key. Where the connection runs TLS, each also proves that it
/// has the id that it claims; without TLS the others believe it.
///
/// All functions belong to the thread of `loop`.
class PeerLinks {
 public:
  static constexpr std::size_t kMostMessageBytes = 4 << 20;
  static constexpr std::size_t kMostQueued = 64;            ///< messages to one peer
  static constexpr std::size_t kMostQueuedBytes = 8 << 20;  ///< and their bytes
  static constexpr std::size_t kMostPeers = 16384;          ///< that are known at a time
  static constexpr std::size_t kMostConnectionsOfPeer = 3;  ///< as both sides may call at once

  struct Options {
    std::string key;
    /// Tells apart who may talk to each other where several use one key.
    std::string cluster;
    PeerId self;
    TlsMode tls = TlsMode::kAuto;
    std::shared_ptr<const TlsContext> context;  ///< of `self`; null: connections without TLS alone
    /// A connection whose other end acknowledges nothing for so long is closed, and another one
    /// made: somebody on the way may have forgotten it.
    Duration unacknowledged = std::chrono::seconds(5);
    /// Called with each message, its kind, and who sent it. May call any function of PeerLinks.
    /// When it throws an Error, the sender has sent what makes no sense, and is disconnected.
    std::function<void(const PeerId& from, std::uint64_t kind, Bytes message)> received;
  };
  struct Counts {
    std::uint64_t dropped = 0;  ///< messages, because a queue was full or nobody has an address
    std::uint64_t calls_failed = 0;  ///< attempts to connect
    std::uint64_t lost = 0;          ///< connections that broke or ended
    std::uint64_t refused = 0;       ///< messages that made no sense, and callers of other clusters
  };

  PeerLinks(EventLoop& loop, Descriptor listener, Options options);
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  /// Says where a peer may be called; numeric addresses, which replace those known before.
  void know(const PeerId& peer, std::vector<Endpoint> endpoints);
  /// Calls whoever listens at one of these numeric addresses, one after the other, again and again,
  /// until one of them has answered and is connected. With the same addresses as before it goes on
  /// with the next one.
  void find(std::vector<Endpoint> contacts);
  /// Returns the peers that were found, or have called, since the last call.
  std::vector<PeerId> take_arrivals();
  /// Returns the peers without a connection that were called since the last call of this, and of
  /// which the hosts at all their addresses say that nobody listens there.
  std::set<PeerId> take_absent();
  /// Forgets the addresses of all other peers and what is queued for them. Connections that they
  /// have made stay.
  void keep_only(const std::set<PeerId>& peers);
  /// Closes the connections to a peer. The next message makes another.
  void disconnect(const PeerId& peer);

  /// Queues a message. `kind` is above 0. Drops it where the peer has neither an address nor a
  /// connection, and where it is too long.
  void send(const PeerId& to, std::uint64_t kind, Bytes message);
  /// Connects where messages wait, ends attempts that take too long. Called at short intervals.
  void tick(Clock::time_point now);
  /// Returns true where the kernel has all messages to those that are connected.
  bool idle() const;
  bool is_connected() const { return !connections_.empty(); }
  bool is_connected(const PeerId& peer) const;
  bool is_encrypted(const PeerId& peer) const;
  const Counts& counts() const { return counts_; }

 private:
  struct Connection {
    PeerId peer;
    bool encrypted = false;
    std::unique_ptr<Link> link;
  };
  struct Message {
    std::uint64_t kind = 0;
    Bytes bytes;
  };
  /// Addresses that are called in turn.
  struct Calls {
    std::vector<Endpoint> endpoints;
    std::size_t next = 0;
    Clock::time_point not_before{};
    Duration pause{};
    bool calling = false;
    std::size_t refusals = 0;  ///< in a row, of addresses where nobody listens
  };
  enum class Ending { kConnected, kRefused, kFailed };
  struct Peer {
    Calls calls;
    std::deque<Message> queue;
    std::size_t queued_bytes = 0;
    std::vector<int> connections;  ///< descriptors; messages go to the last one
  };
  struct Call {
    std::unique_ptr<OutgoingCall> call;
    std::optional<PeerId> peer;  ///< nothing: a contact
  };

  Hello own_hello(int socket) const;
  /// Returns true for what another process of this cluster says, with the same mode of TLS.
  bool is_of_another(const Hello& hello) const;
  std::unique_ptr<Channel> channel_to(Descriptor socket, const Hello& answer, const PeerId* meant);
  std::unique_ptr<Channel> channel_of_caller(Descriptor socket, const Hello& hello);
  void add(std::unique_ptr<Channel> channel, const Hello& hello);
  Calls* calls_of(const std::optional<PeerId>& peer);
  void call(const std::optional<PeerId>& peer, Clock::time_point now);
  void advance_call(int fd);
  void end_call(int fd, Ending ending);
  void note_ending(const std::optional<PeerId>& peer, Calls& calls, Ending ending);
  void serve(int fd, std::uint32_t events);
  void pump(Peer& peer);
  bool write(int fd);
  /// May forget the peer.
  void lose(int fd);
  void drop_oldest(Peer& peer);

  EventLoop& loop_;
  const Options options_;
  std::uint64_t cluster_;
  Counts counts_;
  std::map<PeerId, Peer> peers_;
  std::map<int, Connection> connections_;
  std::map<int, Call> calls_;
  Calls contacts_;
  bool finding_ = false;
  std::vector<PeerId> arrivals_;
  std::set<PeerId> absent_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace shoal::wire
