// What the end of a connection means where a peer has one or several, and how a rail is found on
// which nothing gets through.
#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "shoal/base/duration.h"
#include "shoal/wire/round_trip.h"
#include "shoal/wire/tcp_transport.h"

namespace shoal::wire {

// What waits for other pieces takes room too, and a goodbye counts when all that was sent before it
// is here.
void TcpTransport::note_arrivals(int r) {
  Peer& peer = peers_[r];
  peer.inbox.hold(peer.link->held_bytes());
  if (peer.inbox.has_flow_messages()) send_flow_messages(r);
  if (!peer.says_goodbye || peer.goodbye || !peer.link->complete()) return;
  peer.goodbye = true;
  signal_event();
}

// A peer that has received this rank's goodbye may close without one of its own. One that has said
// goodbye may close each connection when all that it has sent there is here: where one has broken
// before that, something is missing for good.
bool TcpTransport::may_end(const Peer& peer, bool broken) const {
  if (left_ || stopping_ || failure_ || peer.goodbye) return true;
  return peer.says_goodbye && !broken;
}

// The end of rail 0 is that of the peer. That of another rail may overtake the goodbye or the error
// that the peer has sent on rail 0, which is therefore given time; behind a goodbye nothing more is
// to be heard there.
void TcpTransport::end_of_rail(int r, int rail, const Error& how, Duration patience) {
  Peer& peer = peers_[r];
  const bool broken = rail > 0 && peer.link->broken(rail);
  if (rail == 0 && !may_end(peer, broken)) {
    fail(how);
    return close(r);
  }
  epoll_ctl(ready_.get(), EPOLL_CTL_DEL, peer.link->fd(rail), nullptr);
  peer.rails[rail].ended = true;
  bool all = true;
  // A rail that has not come yet will not come any more when rail 0 has ended.
  for (int i = 0; i < peer.link->rails(); ++i)
    all = all && (peer.rails[i].ended || !peer.link->has_rail(i));
  if (all) return close(r);
  if (may_end(peer, broken) || peer.lost_rail) return;
  if (peer.says_goodbye) return fail(how);
  peer.lost_rail = LostRail{Clock::now() + patience, broken, how};
  rail_lost_ = true;
}

void TcpTransport::fail_for_lost_rails() {
  rail_lost_ = false;
  for (Peer& peer : peers_) {
    if (!peer.lost_rail || !peer.link || may_end(peer, peer.lost_rail->broken)) continue;
    if (peer.says_goodbye || Clock::now() >= peer.lost_rail->patience_ends)
      return fail(Error(peer.lost_rail->error));
    rail_lost_ = true;
  }
}

Duration TcpTransport::patience_for_cause(const Peer& peer) const {
  return std::min<Duration>(time_for_last_words(round_trip_of(peer.link->fd())), options_.silence);
}

std::uint64_t TcpTransport::acknowledged_on(const Peer& peer, int rail) {
  const std::uint64_t sent = peer.link->bytes_sent(rail);
  if (!peer.link->has_rail(rail) || peer.link->broken(rail)) return sent;
  // It counts what was handed to this kernel and not acknowledged, whether it was sent or not.
  int outstanding = 0;
  ioctl(peer.link->fd(rail), SIOCOUTQ, &outstanding);
  return sent - std::min(sent, static_cast<std::uint64_t>(std::max(outstanding, 0)));
}

// Heartbeats go over rail 0: a cut that meets another rail alone shows when what was sent there is
// not acknowledged. As with heartbeats, time during which this rank itself was held up hardly
// counts. The kernel's own limit (TCP_USER_TIMEOUT) counts it: by that a job that is suspended and
// goes on would lose the rails whose receive buffers were full.
void TcpTransport::find_stuck_rails() {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link || peer.goodbye) continue;
    for (int rail = 1; peer.link && rail < peer.link->rails(); ++rail) {
      RailState& state = peer.rails[rail];
      if (state.ended || !peer.link->has_rail(rail)) continue;
      const std::uint64_t acknowledged = acknowledged_on(peer, rail);
      const bool waits = acknowledged != peer.link->bytes_sent(rail);
      if (!waits || acknowledged != state.acknowledged) {
        state.acknowledged = acknowledged;
        state.last_progress = awake_.total();
        continue;
      }
      const Duration stuck = awake_.total() - state.last_progress;
      if (stuck < options_.silence + options_.heartbeat) continue;
      peer.link->set_broken(rail);
      end_of_rail(r, rail,
                  Error(ErrorKind::kPeerLost, "send",
                        fmt::format("rank {} is lost: connection {} of {}: nothing that was sent "
                                    "there for {:.1f} s has arrived",
                                    r, rail, peer.link->rails(), to_seconds(stuck)))
                      .at(rank_, size_)
                      .from(r),
                  patience_for_cause(peer));
    }
  }
}

}  // namespace shoal::wire
