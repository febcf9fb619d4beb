// What happens when the first of several rails is lost: how it is replaced, how ranks hear of each
// other meanwhile, and how a peer that has ended is told from one that has lost its connections.
#include <fmt/format.h>
#include <sys/epoll.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "shoal/wire/round_trip.h"
#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"

namespace shoal::wire {

// What was lost with rail 0 has its order, and only rail 0 keeps it. Where nothing more is sent, as
// this rank has failed, or comes, as the peer has said goodbye, there is nothing to keep.
bool TcpTransport::replaces_first_rail(const Peer& peer) const {
  return wants_rails(peer) && peer.link->replaces_first_rail();
}

void TcpTransport::drop_first_rail(int r, const Error& how) {
  Peer& peer = peers_[r];
  epoll_ctl(ready_.get(), EPOLL_CTL_DEL, peer.link->fd(0), nullptr);
  peer.round_trip = round_trip_of(peer.link->fd(0));
  peer.link->lose_first_rail();
  peer.rails[0].ended = true;
  note_loss(peer.first_rail, how);
}

void TcpTransport::note_loss(Missing& missing, const Error& how) const {
  if (!missing.since) missing.since = awake_.total();
  missing.why = how;
}

// The number tells a call from those before it. Its caller may not have had the last one that this
// rank has taken, and this rank may not have had the last ones of its caller, nor know that the
// current one is broken: how much each has is said on the new one.
bool TcpTransport::admits_first_rail(const Peer& peer, const PeerHello& hello) const {
  return peer.link->rails() == hello.rails && peer.connection == hello.connection &&
         peer.id == hello.id && replaces_first_rail(peer) &&
         peer.link->first_account()->may_follow(hello.attempt);
}

void TcpTransport::replace_first_rail(int r, std::uint8_t number,
                                      std::unique_ptr<Channel> channel) {
  if (peers_[r].link->has_rail(0)) {
    drop_first_rail(r, Error(ErrorKind::kPeerLost, "receive",
                             fmt::format("rank {} has replaced its first connection", r))
                           .at(rank_, size_)
                           .from(r));
  }
  add_first_rail(r, number, std::move(channel));
}

// Called with the lock held, by the thread.
void TcpTransport::add_first_rail(int r, std::uint8_t number, std::unique_ptr<Channel> channel) {
  Link& link = *peers_[r].link;
  set_up(channel->fd(), r, 0, link.rails());
  link.add_first_rail(std::move(channel), number);
  ++first_rails_replaced_;
  begin_rail(r, 0);
  flush_peer(r);
}

// The first report on a connection says where the peer goes on. Reports of other rails, for which
// there was none to carry them, follow. A connection that is made again and again, and cut each
// time before anything gets through, is as good as none: it is missing until the peer has more.
void TcpTransport::obey_first_report(int r, const ReceivedChunk& chunk) {
  Peer& peer = peers_[r];
  const auto report = RailReport::decode({chunk.data(), chunk.bytes()});
  if (!report || report->rail != 0 || peer.link->rails() < 2) return;
  peer.link->obey(*report);
  if (peer.link->first_account()->got_on()) peer.first_rail.since.reset();
  report_pieces(r);
  flush_peer(r);
}

void TcpTransport::report_first_rail(int r, bool at_once) {
  const auto report = peers_[r].link->report_first_rail(at_once);
  if (!report) return;
  peers_[r].link->send(FirstRailAccount::kReports, kControlPriority, report->encode());
  flush_peer(r);
}

// Between two looks up to two heartbeats may pass.
bool TcpTransport::first_rail_is_stuck(const Peer& peer) const {
  return awake_.total() - peer.rails[0].last_progress > 3 * options_.heartbeat;
}

// Returns true where what was sent on another rail has been acknowledged, or nothing was sent.
bool TcpTransport::others_get_through(const Peer& peer) const {
  for (int rail = 1; rail < peer.link->rails(); ++rail) {
    const Duration stuck = awake_.total() - peer.rails[rail].last_progress;
    if (peer.link->has_rail(rail) && stuck <= 2 * options_.heartbeat) return true;
  }
  return false;
}

// Heartbeats go over rail 0. While it is missing, or nothing gets through there, the others say
// that this rank lives.
void TcpTransport::keep_up_without_first_rail() {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link || peer.link->rails() < 2 || peer.finished || peer.goodbye) continue;
    if (peer.link->has_rail(0) && !peer.rails[0].ended) report_first_rail(r, true);
    if (!replaces_first_rail(peer)) continue;
    if (peer.link->has_rail(0) && !first_rail_is_stuck(peer)) continue;
    peer.link->send_beats();
    flush_peer(r);
  }
}

// A rank that is called by another one does not know where that one listens. It is told on rail 0,
// with the address from which the call seems to its caller to come: where an address translator
// has changed that, the other address is of no use either. Nor is one behind a firewall: it is
// tried once. Nothing but the address from which the peer calls is asked, whatever it says.
void TcpTransport::tell_listener(int r) {
  Peer& peer = peers_[r];
  if (!peer.link || peer.link->rails() < 2) return;
  try {
    const std::string text = listens_at_ + " " + local_endpoint(peer.link->fd(0)).text();
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    peer.link->send({0, kListener}, kControlPriority, Bytes(bytes, bytes + text.size()));
    flush_peer(r);
  } catch (const Error&) {  // the connection is broken already, as whoever reads it finds
  }
}

void TcpTransport::keep_listener(int r, const ReceivedChunk& message) {
  constexpr std::size_t kMostBytes = 600;
  if (message.bytes() > kMostBytes || r < rank_) return;
  const std::string text(reinterpret_cast<const char*>(message.data()), message.bytes());
  const auto space = text.find(' ');
  if (space == std::string::npos) return;
  try {
    const Endpoint listener = parse_endpoint(text.substr(0, space));
    const Endpoint caller = remote_endpoint(peers_[r].link->fd(0));
    if (caller.text() != text.substr(space + 1) || caller.host != listener.host) return;
    peers_[r].listener = listener;
    connect_again(r, 0);
  } catch (const Error&) {  // it is not asked then
  }
}

// Tells whether a higher rank was there when it was asked. One that has never been is not asked
// again.
void TcpTransport::note_answer(int r, bool answers) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[r];
  if (answers) peer.listener_answers = true;
  if (!peer.listener_answers) peer.listener.reset();
}

void TcpTransport::note_refusal(int r) {
  if (rank_ < r) note_answer(r, false);
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[r];
  if (!peer.link || peer.link->has_rail(0)) return;
  peer.refused = true;
  end_if_unreachable(r);
}

// A process that ends closes all its connections and its listener. One that is alive and loses all
// connections at a time still listens. Where that cannot be asked, it counts as the end.
void TcpTransport::end_if_unreachable(int r) {
  Peer& peer = peers_[r];
  if (!peer.link || peer.link->has_any_rail() || !replaces_first_rail(peer)) return;
  if (rank_ < r && peer.listener_answers && !peer.refused) return connect_again(r, 0);
  if (rank_ > r && !peer.refused) return;
  lose_peer(r, *peer.first_rail.why);
}

void TcpTransport::lose_peer(int r, const Error& how) {
  if (!may_end(peers_[r])) fail(how);
  close(r);
}

}  // namespace shoal::wire
