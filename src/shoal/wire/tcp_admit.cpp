// How a rank takes the connections that others make, and those that it has made itself.
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "shoal/base/system_error.h"
#include "shoal/wire/parking.h"
#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"

namespace shoal::wire {
namespace {

/// Bytes that the kernel takes beyond what it has sent, for a peer on another host. More would
/// delay urgent messages, which wait behind them.
constexpr int kMostUnsent = 256 << 10;
/// As above for all rails together. Messages are divided among them by what their kernels take, so
/// the share of each is also by how much it may end later than the others.
constexpr int kMostUnsentOfRails = 512 << 10;
constexpr int kLeastUnsentOfRail = 16 << 10;
constexpr int kMostUnsentOfRail = 128 << 10;

int most_unsent(int rails) {
  if (rails == 1) return kMostUnsent;
  return std::clamp(kMostUnsentOfRails / (rails - 1), kLeastUnsentOfRail, kMostUnsentOfRail);
}

/// As leaves_host, and true for a connection that broke before anybody used it.
bool leaves_host_or_broke(int socket) {
  try {
    return leaves_host(socket);
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

// A rank that this one waits for has a wrong setting, and the job cannot begin. If it is here
// already, the caller is somebody else, whom the answer has told the setting of this rank.
void TcpTransport::refuse_other_tls(const PeerHello& hello) {
  const Error error = other_tls(hello.rank, hello.tls);
  const std::lock_guard lock(mutex_);
  const Peer& peer = peers_[hello.rank];
  if (!peer.link && !peer.gone) return fail(error);
  fmt::print(stderr, "shoal: a caller that says it is rank {} was refused: {}\n", hello.rank,
             error.message());
}

// Runs in the thread. The caller decides whether TLS follows; it may see that the connection leaves
// the host where this side does not, behind an address translator. Never does the caller do without
// it where this side does not.
std::unique_ptr<Channel> TcpTransport::channel_of_caller(Descriptor socket, const Hello& bytes) {
  const PeerHello hello = PeerHello::decode(bytes);
  if (hello.rank <= rank_ || hello.rank >= size_ || hello.size != size_) return nullptr;
  if (hello.tls != options_.tls) {
    refuse_other_tls(hello);
    return nullptr;
  }
  const bool plain = hello.encrypted == 0 && !wants_tls(options_.tls, socket.get());
  if (!plain && (hello.encrypted != 1 || !tls_)) return nullptr;
  return channel_over(std::move(socket), plain ? nullptr : tls_, TlsChannel::Role::kListener,
                      hello.id);
}

// Runs in the thread. A connection that claims to be a rank that is here already, a lower rank
// (which never connects), or a rank of a world of another size is closed. So is a rail that the
// peer has already, or one of an earlier attempt to connect, and a later connection of a rail 0 of
// which this process has never had the first.
void TcpTransport::admit(std::unique_ptr<Channel> channel, const Hello& bytes) {
  const PeerHello hello = PeerHello::decode(bytes);
  const int rank = hello.rank;
  const std::lock_guard lock(mutex_);
  if (rank <= rank_ || rank >= size_ || hello.size != size_ || peers_[rank].gone) return;
  if (hello.rails < 1 || hello.rails > kMostRails || hello.rail >= hello.rails) return;
  const Peer& peer = peers_[rank];
  if (hello.rail == 0 && (peer.link ? !admits_first_rail(peer, hello) : hello.attempt != 0)) return;
  if (hello.rail > 0 &&
      (!peer.link || peer.link->rails() != hello.rails || peer.connection != hello.connection ||
       peer.id != hello.id || !is_awaited(rank, hello)))
    return;
  try {
    if (hello.rail == 0 && peer.link) {
      replace_first_rail(rank, hello.attempt, std::move(channel));
    } else if (hello.rail == 0) {
      peers_[rank].id = hello.id;
      add_peer(hello, rank, std::move(channel));
    } else {
      add_rail(rank, hello.rail, std::move(channel));
    }
  } catch (const Error&) {  // it has closed the connection already
  }
}

// Throws where the connection cannot be watched. It has closed it then. One that broke behind its
// handshake is added all the same: whoever reads it meets the break, and says whose it was.
void TcpTransport::add_peer(const PeerHello& hello, int rank, std::unique_ptr<Channel> channel) {
  const bool here = !leaves_host_or_broke(channel->fd());
  set_up(channel->fd(), rank, 0, hello.rails);
  Peer& peer = peers_[rank];
  peer.encrypted = hello.encrypted == 1;
  peer.link =
      std::make_unique<Link>(std::move(channel), std::uint64_t{1} << 42, pool_, hello.rails);
  peer.rails.assign(hello.rails, {.watched_events = EPOLLIN, .last_progress = awake_.total()});
  peer.connection = hello.connection;
  peer.last_heard = awake_.total();
  if (here) ++ranks_here_;
  spins_ = options_.spins && SpinPolicy::for_ranks(ranks_here_).spins() > 1;
  if (failure_) {
    // It came after the failure was sent to all: it gets the cause now.
    peer.link->send({0, kAbort}, kControlPriority, encode(*failure_));
    flush_peer(rank);
  }
  signal_event();
  wake_driver();
}

void TcpTransport::add_rail(int rank, int rail, std::unique_ptr<Channel> channel) {
  Link& link = *peers_[rank].link;
  set_up(channel->fd(), rank, rail, link.rails());
  link.add_rail(rail, std::move(channel));
  begin_rail(rank, rail);
}

void TcpTransport::begin_rail(int rank, int rail) {
  Peer& peer = peers_[rank];
  peer.rails[rail] = {.watched_events = EPOLLIN, .last_progress = awake_.total()};
  // It has just completed its handshake.
  peer.last_heard = awake_.total();
  peer.refused = false;
  if (rail > 0) peer.other_rails.since.reset();
  if (!peer.was_ready && peer.link->ready()) {
    peer.was_ready = true;
    if (peer.first_rail.since) peer.first_rail.since = awake_.total();
  }
  signal_event();
  wake_driver();
}

void TcpTransport::set_up(int fd, int rank, int rail, int rails) {
  if (leaves_host_or_broke(fd)) {
    const int most = most_unsent(rails);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most, sizeof most);
  }
  if (rail > 0) {
    // A rail that carries nothing for long is forgotten by firewalls and address translators.
    const int on = 1;
    const int idle_s = 15;
    const int between_s = 5;
    const int most = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &most, sizeof most);
  }
  epoll_event event{.events = EPOLLIN,
                    .data = {.u32 = static_cast<std::uint32_t>(rank * kMostRails + rail)}};
  if (epoll_ctl(ready_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw system_error(ErrorKind::kResource, "connect", "cannot watch a connection");
}

}  // namespace shoal::wire
