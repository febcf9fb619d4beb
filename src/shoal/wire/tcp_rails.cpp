// What the end of a connection means where a peer has one or several, and how a rail is found on
// which nothing gets through.
#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <chrono>

#include "shoal/base/duration.h"
#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"

namespace shoal::wire {
namespace {

/// A peer may miss its first rail, or all others, for so long, where nobody says how long it may be
/// silent: new connections may take several attempts.
constexpr Duration kLongestWithoutRails = std::chrono::seconds(15);

}  // namespace

// What waits for other pieces takes room too, and a goodbye counts when all that was sent before it
// is here.
void TcpTransport::note_arrivals(int r) {
  Peer& peer = peers_[r];
  peer.inbox.hold(peer.link->held_bytes());
  if (peer.inbox.has_flow_messages()) send_flow_messages(r);
  if (!peer.says_goodbye || peer.goodbye || !peer.link->complete()) return;
  peer.goodbye = true;
  peer.link->await_no_reports();
  signal_event();
}

// A peer that has received this rank's goodbye may close without one of its own.
bool TcpTransport::may_end(const Peer& peer) const {
  return peer.says_goodbye || left_ || stopping_ || failure_;
}

// The end of the only rail is that of the peer, and that of one of several is mended.
void TcpTransport::end_of_rail(int r, int rail, const Error& how) {
  Peer& peer = peers_[r];
  if (rail > 0 || replaces_first_rail(peer)) {
    lose_rail(r, rail, how);
    if (!peer.link) return;
  } else if (!may_end(peer)) {
    fail(how);
    return close(r);
  } else {
    epoll_ctl(ready_.get(), EPOLL_CTL_DEL, peer.link->fd(0), nullptr);
    peer.rails[0].ended = true;
  }
  bool all = true;
  for (int i = 0; i < peer.link->rails(); ++i)
    all = all && (peer.rails[i].ended || !peer.link->has_rail(i));
  if (all && (peer.link->has_rail(0) || !replaces_first_rail(peer))) close(r);
}

// The peer closes its end, too. Of rail 0 both say how much they have on the next connection, of
// another rail on rail 0.
void TcpTransport::lose_rail(int r, int rail, const Error& how) {
  Peer& peer = peers_[r];
  if (rail == 0) {
    drop_first_rail(r, how);
    if (rank_ > r) connect_again(r, 0);
  } else {
    epoll_ctl(ready_.get(), EPOLL_CTL_DEL, peer.link->fd(rail), nullptr);
    if (failure_) peer.link->await_no_reports();
    const RailReport report = peer.link->lose_rail(rail);
    peer.rails[rail].ended = true;
    bool others = false;
    for (int other = 1; other < peer.link->rails(); ++other)
      others = others || peer.link->has_rail(other);
    if (!others) note_loss(peer.other_rails, how);
    const bool can_be_told = !peer.rails[0].ended || replaces_first_rail(peer);
    if (!peer.finished && can_be_told) {
      peer.link->send({0, kRail}, kControlPriority, report.encode());
      flush_peer(r);
    }
  }
  end_if_unreachable(r);
}

void TcpTransport::report_pieces(int r) {
  Peer& peer = peers_[r];
  // Without rail 0 they are made when it is there again.
  if (!peer.link || peer.finished || peer.rails[0].ended) return;
  report_first_rail(r, false);
  bool any = false;
  for (int rail = 1; rail < peer.link->rails(); ++rail) {
    if (!peer.link->has_rail(rail)) continue;
    const auto report = peer.link->report(rail);
    if (!report) continue;
    peer.link->send({0, kRail}, kControlPriority, report->encode());
    any = true;
  }
  if (any) flush_peer(r);
}

// Called with the lock held, by the thread, at each of its turns: it looks once in kLookForLate.
// Returns true where it has to look again.
bool TcpTransport::send_late_again() {
  if (failure_) return false;
  const auto now = Clock::now();
  if (now < next_look_for_late_) return may_have_late_;
  next_look_for_late_ = now + kLookForLate;
  may_have_late_ = false;
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link || peer.link->rails() < 2 || peer.finished) continue;
    if (!peer.link->may_have_late()) continue;
    may_have_late_ = true;
    const std::uint64_t before = peer.link->sent_again();
    peer.link->send_late_again(now);
    if (before != peer.link->sent_again()) flush_peer(r);
  }
  return may_have_late_;
}

// A report of a connection that this rank does not have yet is of one that the peer has taken and
// lost before its handshake was complete here.
void TcpTransport::obey_report(int r, const ReceivedChunk& chunk) {
  Peer& peer = peers_[r];
  const auto report = RailReport::decode({chunk.data(), chunk.bytes()});
  if (!report || report->rail < 1 || report->rail >= peer.link->rails()) return;
  const int rail = report->rail;
  using State = RailAccount::State;
  const State state = peer.link->account(rail).state();
  if (report->connection == peer.link->account(rail).awaited() && report->closed != 0 &&
      !peer.link->has_rail(rail) && state != State::kClosing) {
    const RailReport none = peer.link->skip_connection(rail);
    peer.link->send({0, kRail}, kControlPriority, none.encode());
  }
  if (report->connection != peer.link->account(rail).connection()) return;
  if (report->closed != 0 && peer.link->has_rail(rail)) {
    lose_rail(
        r, rail,
        Error(ErrorKind::kPeerLost, "receive",
              fmt::format("rank {} has lost connection {} of {}", r, rail, peer.link->rails()))
            .at(rank_, size_)
            .from(r));
  }
  const auto releases = peer.link->releases();
  peer.link->obey(*report);
  if (releases != peer.link->releases()) signal_event();
  if (peer.link->account(rail).state() == State::kClosed && rank_ > r) connect_again(r, rail);
  flush_peer(r);
}

// Returns true where more may have to be sent to the peer, or comes from it.
bool TcpTransport::wants_rails(const Peer& peer) const {
  if (!peer.link || failure_ || peer.says_goodbye || peer.finished) return false;
  return !left_ || !peer.link->idle();
}

// While the connections are being made for the first time, whoever makes them has a deadline.
void TcpTransport::fail_without_rails() {
  const Duration longest =
      options_.silence > Duration::zero() ? options_.silence : kLongestWithoutRails;
  for (const Peer& peer : peers_) {
    if (!peer.was_ready || !wants_rails(peer)) continue;
    for (const Missing* missing : {&peer.first_rail, &peer.other_rails}) {
      if (!missing->since) continue;
      const Duration without = awake_.total() - *missing->since;
      if (without < longest + options_.heartbeat) continue;
      const bool first = missing == &peer.first_rail;
      std::string what = first ? "nothing has got through on its first connection, which was lost"
                               : "no connection but the first could be made again";
      if (first && !peer.link->has_rail(0))
        what = "the first connection could not be made again, or nothing has got through there";
      if (!peer.link->has_any_rail()) what = "no connection could be made again";
      const Error& how = *missing->why;
      return fail(Error(ErrorKind::kPeerLost, "connect",
                        fmt::format("{}; for {:.1f} s {}{}", how.message(), to_seconds(without),
                                    what, refused_callers()))
                      .at(rank_, size_)
                      .from(how.peer())
                      .hint(how.hint()));
    }
  }
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
// not acknowledged. So does one that meets rail 0 alone; where nothing gets through on the others
// either, it is the link, and the silence of the peer ends it. As with heartbeats, time during
// which this rank itself was held up hardly counts. The kernel's own limit (TCP_USER_TIMEOUT)
// counts it: by that a job that is suspended and goes on would lose the rails whose receive buffers
// were full.
void TcpTransport::find_stuck_rails() {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link || peer.goodbye) continue;
    for (int rail = replaces_first_rail(peer) ? 0 : 1; peer.link && rail < peer.link->rails();
         ++rail) {
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
      if (!outlasts_silence(peer, stuck)) continue;
      if (rail == 0 && !others_get_through(peer)) continue;
      peer.link->set_broken(rail);
      end_of_rail(r, rail,
                  Error(ErrorKind::kPeerLost, "send",
                        fmt::format("rank {} is lost: connection {} of {}: nothing that was sent "
                                    "there for {:.1f} s has arrived",
                                    r, rail, peer.link->rails(), to_seconds(stuck)))
                      .at(rank_, size_)
                      .from(r));
    }
  }
}

}  // namespace shoal::wire
