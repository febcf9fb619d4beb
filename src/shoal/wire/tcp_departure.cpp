// How a rank leaves the others in good order: what it has sent arrives, and its goodbye behind it.
#include <algorithm>
#include <chrono>

#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"

namespace shoal::wire {
namespace {

/// A peer whose kernel has everything is given so long to close its connection too.
constexpr Duration kAwaitEnd = std::chrono::seconds(1);
/// Nothing more is expected of a peer that acknowledges nothing for so long.
constexpr Duration kLongestStall = std::chrono::seconds(5);
/// A rank waits for its peers no longer than this, however slowly its bytes get through.
constexpr Duration kLongestDeparture = std::chrono::minutes(2);

}  // namespace

// A rank that has received the goodbye does not treat the end of this connection as a failure. The
// goodbye goes out when all that was queued before it has: see `flush_peer`.
void TcpTransport::leave() {
  const std::lock_guard lock(mutex_);
  if (left_) return;
  left_ = true;
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link || peer.goodbye) continue;
    peer.goodbye_due = true;
    flush_peer(r);
  }
}

TcpTransport::~TcpTransport() {
  leave();
  stop();
}

void TcpTransport::stop() {
  {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    stopping_ = now;
    for (Peer& peer : peers_) {
      // A peer that has been silent is not waited for anew: perhaps that is why this rank stops.
      const bool silent = peer.link && awake_.total() - peer.last_heard >=
                                           std::min(silence_of(peer), kLongestStall);
      peer.last_progress = silent ? now - kLongestStall : now;
      if (peer.link) peer.progress = progress_of(peer);
    }
  }
  loop_.wake();
  thread_.join();
}

// A connection that is closed before its peer's end is read resets it: the kernel then drops what
// it has not delivered yet, the goodbye too, and the peer would take this rank for lost. So a rank
// that leaves says that nothing more comes and reads on, until the peer has closed as well (see
// `serve`). Returns true when nothing more is awaited of any peer.
bool TcpTransport::finish_sending(Clock::time_point now) {
  bool all_closed = true;
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link) continue;
    // It has lost all connections, and no other one is made.
    if (!peer.link->has_any_rail() && !wants_rails(peer)) {
      close(r);
      continue;
    }
    if (!peer.finished && !peer.goodbye_due && peer.link->idle()) peer.finished = true;
    if (peer.finished && !peer.end_sent) peer.end_sent = peer.link->finish_sending();
    if (!is_done(r, now)) all_closed = false;
  }
  return all_closed || now - *stopping_ >= kLongestDeparture;
}

std::uint64_t TcpTransport::acknowledged_by(const Peer& peer) {
  std::uint64_t acknowledged = peer.link->bytes_sent();
  for (int rail = 0; rail < peer.link->rails(); ++rail)
    acknowledged -= peer.link->bytes_sent(rail) - acknowledged_on(peer, rail);
  return acknowledged;
}

// Over several rails the peer itself reports what has come: one that is suspended does not, though
// its kernel goes on taking heartbeats. One that is there says something every now and then.
std::uint64_t TcpTransport::progress_of(const Peer& peer) {
  const bool awaits_reports = peer.link->rails() > 1 && !peer.finished;
  return awaits_reports ? peer.link->bytes_received() : acknowledged_by(peer);
}

bool TcpTransport::is_done(int r, Clock::time_point now) {
  Peer& peer = peers_[r];
  const std::uint64_t progress = progress_of(peer);
  if (progress != peer.progress) {
    peer.progress = progress;
    peer.last_progress = now;
  }
  const Duration stalled = now - peer.last_progress;
  if (peer.finished && progress == peer.link->bytes_sent()) return stalled >= kAwaitEnd;
  if (stalled < kLongestStall) return false;
  // Messages that the peer never asked for may be left. The goodbye is worth more than they are.
  if (!peer.link->idle()) {
    peer.link->drop_all();
    flush_peer(r);
  }
  return stalled >= kLongestStall + kAwaitEnd;
}

}  // namespace shoal::wire
