#include "shoal/wire/tcp_transport.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "shoal/base/duration.h"
#include "shoal/wire/round_trip.h"
#include "shoal/wire/silence.h"
#include "shoal/wire/tcp_control.h"

namespace shoal::wire {
namespace {

/// A driver spins for so long before it sleeps, where every rank has a core.
constexpr Duration kSpin = std::chrono::microseconds(100);
/// The thread moves the bytes when no caller has waited for so long.
constexpr Duration kTakeOverAfter = std::chrono::milliseconds(1);
/// The thread looks so often whether the driver is still there.
constexpr Duration kPollDriver = std::chrono::milliseconds(5);
/// After an exception that is no failure of a peer the thread goes on, but not in a busy loop.
constexpr Duration kAfterException = std::chrono::milliseconds(10);

/// Both look the same from here: the kernel of a process that ends resets its connections, too.
constexpr const char* kEitherCause =
    "its process has ended: look at its log; or it lives, and something on the way (a firewall, "
    "say) has cut the connection";

}  // namespace

/// Receives the chunks of one peer; runs under the lock, within Link::receive.
class TcpTransport::PeerSink final : public ChunkSink {
 public:
  PeerSink(TcpTransport& transport, int rank) : transport_(transport), rank_(rank) {}

  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset, std::size_t) override {
    return transport_.peers_[rank_].inbox.place(stream, total, offset);
  }

  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    transport_.deliver(rank_, stream, std::move(chunk), bytes);
  }

  void last_words(std::span<const std::byte> words) override {
    transport_.fail(decode_error(words));
  }

 private:
  TcpTransport& transport_;
  int rank_;
};

// The thread. While a caller drives, or did a moment ago, the thread only accepts connections and
// sends heartbeats: two threads in epoll_wait on the same set would wake each other for nothing.
void TcpTransport::run() {
  bool watching = false;
  for (bool go_on = true; go_on;) {
    try {
      go_on = run_once(watching);
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex_);
        fail_of_itself(error.what());
      }
      std::this_thread::sleep_for(kAfterException);
    }
  }
  for (auto& [rail, redial] : redials_) hang_up(redial);
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (peers_[r].link) close(r);
}

// The memory or the descriptors of this process are used up, say. The other ranks hear it, and the
// thread lives on to tell them.
//
// Called with the lock held.
void TcpTransport::fail_of_itself(const char* what) {
  try {
    fail(Error(ErrorKind::kResource, "connections", what).at(rank_, size_));
  } catch (const std::exception&) {
    // The failure is noted at least on this rank, whose end the others notice.
  }
}

// Returns false when the thread may end.
bool TcpTransport::run_once(bool& watching) {
  Duration limit = std::min<Duration>(options_.heartbeat, kMaxWait);
  {
    const std::lock_guard lock(mutex_);
    if (Clock::now() >= next_heartbeat_) send_heartbeats();
    if (stopping_) {
      if (finish_sending(Clock::now())) return false;
      limit = std::chrono::milliseconds(10);
    }
    const bool aside = !stopping_ && (driving_ || Clock::now() - last_driven_ < kTakeOverAfter);
    if (aside) limit = std::min(limit, driving_ ? kPollDriver : kTakeOverAfter);
    if (watching == aside) {
      watch_connections(!aside);
      watching = !aside;
    }
    take_lost_rails();
    if (send_late_again()) limit = std::min<Duration>(limit, kLookForLate);
  }
  if (!redials_.empty()) limit = std::min(limit, redial());
  loop_.run_once(limit);
  acceptor_->drop_expired();
  return true;
}

// `ready_` is an epoll set itself, which the loop watches as one descriptor: it is readable when
// any connection is.
void TcpTransport::watch_connections(bool watch) {
  if (!watch) return loop_.remove(ready_.get());
  loop_.watch(ready_.get(), EPOLLIN, [this](std::uint32_t) {
    std::unique_lock lock(mutex_);
    // A caller may have begun to drive since epoll reported the event.
    if (!driving_) move_bytes(lock, Duration::zero());
  });
}

void TcpTransport::send_heartbeats() {
  const auto now = Clock::now();
  // A rank that was held up itself has not read what the others have sent meanwhile: that time
  // hardly counts (see AwakeTime).
  awake_.tick(now);
  next_heartbeat_ = now + options_.heartbeat;
  send_control(kHeartbeat, {});
  keep_up_without_first_rail();
  // To a rank that has left, the others say nothing more.
  if (left_) return;
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = peers_[r];
    // A byte counts as heard at the tick before it, up to one heartbeat early.
    const Duration silent = awake_.total() - peer.last_heard;
    if (!peer.link || peer.goodbye || !peer.link->has_any_rail()) continue;
    if (!outlasts_silence(peer, silent)) continue;
    fail(
        Error(ErrorKind::kPeerLost, "heartbeat",
              fmt::format("rank {} has been silent for {:.1f} s: it is stopped, or the link is cut",
                          r, to_seconds(silent)))
            .at(rank_, size_)
            .from(r)
            .hint("a rank that only pauses is given more time by parallelism.silence_s "
                  "(SHOAL_SILENCE_S under PyTorch)"));
  }
  find_stuck_rails();
  fail_without_rails();
}

// The kernel's round trip grows with the queues on the way, and the silence that is borne with it.
Duration TcpTransport::silence_of(const Peer& peer) const {
  if (options_.silence > Duration::zero()) return options_.silence;
  if (peer.link->has_rail(0)) return silence_for(round_trip_of(peer.link->fd(0)));
  Duration round_trip = peer.round_trip;
  for (int rail = 1; rail < peer.link->rails(); ++rail) {
    if (peer.link->has_rail(rail))
      round_trip = std::max(round_trip, round_trip_of(peer.link->fd(rail)));
  }
  return silence_for(round_trip);
}

// Most are short: the kernel is asked for the round trip only where it decides.
bool TcpTransport::outlasts_silence(const Peer& peer, Duration time) const {
  const Duration least = silence_for({}) + options_.heartbeat;
  if (options_.silence == Duration::zero() && time < least) return false;
  return time >= silence_of(peer) + options_.heartbeat;
}

void TcpTransport::send_control(std::uint64_t what, const Bytes& message) {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link || peer.goodbye || peer.finished) continue;
    // After a failure nothing carries it any more, and other rails have the last words.
    if (failure_ && !peer.link->has_rail(0)) continue;
    // Heartbeats do not pile up behind a peer that takes nothing.
    if (what == kHeartbeat && !peer.link->idle({0, kHeartbeat})) continue;
    peer.link->send({0, what}, kControlPriority, message);
    flush_peer(r);
  }
}

// Called with the lock held. The lock is released during epoll_wait, so that other threads can
// queue messages and take chunks while the driver sleeps.
void TcpTransport::move_bytes(std::unique_lock<std::mutex>& lock, Duration limit) {
  epoll_event events[16];
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  lock.unlock();
  const int n = epoll_wait(ready_.get(), events, 16, static_cast<int>(ms));
  lock.lock();
  for (int i = 0; i < n; ++i) {
    const std::uint32_t what = events[i].data.u32;
    if (what != kWake) {
      serve(static_cast<int>(what / kMostRails), static_cast<int>(what % kMostRails),
            events[i].events);
      continue;
    }
    std::uint64_t count;
    [[maybe_unused]] const auto bytes = read(wake_.get(), &count, sizeof count);
  }
  // Once for all that has come: each report takes a packet on the first rail.
  for (const int r : std::exchange(reports_due_, {})) report_pieces(r);
}

void TcpTransport::serve(int r, int rail, std::uint32_t events) {
  Peer& peer = peers_[r];
  // The connection may have been closed while the lock was released.
  if (!peer.link || peer.rails[rail].ended) return;
  // EPOLLERR and EPOLLHUP come without being asked for. They are read like data, because bytes that
  // the peer sent before its end come first.
  if (events & EPOLLOUT) {
    peer.link->writable(rail);
    flush_peer(r);
  }
  if ((events & ~std::uint32_t{EPOLLOUT}) == 0) return;
  const auto lost = [&](const std::string& how) {
    return Error(ErrorKind::kPeerLost, "receive", fmt::format("rank {} {}", r, how))
        .at(rank_, size_)
        .from(r);
  };
  try {
    PeerSink sink(*this, r);
    const std::uint64_t before = peer.link->bytes_received();
    const bool open = peer.link->receive(rail, sink);
    // With TLS, bytes of a record that is never complete may be somebody else's: they do not count.
    if (const std::uint64_t bytes = peer.link->bytes_received() - before; bytes > 0) {
      peer.last_heard = awake_.total();
      next_speaker_.heard(r, bytes, peer.link->is_within_chunk());
    }
    if (peer.link->rails() > 1) note_arrivals(r);
    if (peer.link->rails() > 1) reports_due_.push_back(r);
    if (open) return;
    // The kernel tells the reason once, and may have told it when this rank wrote.
    if (const std::string& why = peer.link->write_failure(rail); !why.empty())
      throw Error(ErrorKind::kPeerLost, "receive", why);
    const std::string how =
        rail == 0 ? "closed its connection and left no error report"
                  : fmt::format("closed connection {} of {}", rail, peer.link->rails());
    end_of_rail(r, rail, lost(how).hint(kEitherCause));
  } catch (const Error& error) {
    if (peer.link->rails() > 1 && peer.link->has_rail(rail)) peer.link->set_broken(rail);
    // Sent again, it would make as little sense.
    if (rail == 0 && error.kind() == ErrorKind::kData) peer.link->await_no_reports();
    const std::string which =
        rail == 0 ? "" : fmt::format("connection {} of {}: ", rail, peer.link->rails());
    const bool broke = error.kind() == ErrorKind::kPeerLost && error.hint().empty();
    end_of_rail(r, rail,
                lost("is lost: " + which + error.message())
                    .hint(broke ? std::string(kEitherCause) : error.hint()));
  }
}

void TcpTransport::close(int r) {
  Peer& peer = peers_[r];
  for (int rail = 0; rail < peer.link->rails(); ++rail) {
    if (peer.link->has_rail(rail) && !peer.rails[rail].ended)
      epoll_ctl(ready_.get(), EPOLL_CTL_DEL, peer.link->fd(rail), nullptr);
  }
  // A message that was not sent keeps its operation waiting, which then finds that the peer is
  // gone. Nothing reads its memory any more.
  if (!failure_) peer.link->abandon();
  peer.link.reset();
  peer.rails.clear();
  peer.inbox.forget_posted();
  peer.gone = true;
  signal_event();
}

void TcpTransport::deliver(int r, Stream stream, ReceivedChunk chunk, std::size_t bytes) {
  if (stream.group == 0) return handle_control(r, stream.sequence, chunk);
  Inbox& inbox = peers_[r].inbox;
  // What was held for a missing piece until now counts once.
  if (peers_[r].link->rails() > 1) inbox.hold(peers_[r].link->held_bytes());
  inbox.arrived(stream, std::move(chunk), bytes);
  if (inbox.has_flow_messages()) send_flow_messages(r);
  signal_event();
}

void TcpTransport::send_flow_messages(int r) {
  Peer& peer = peers_[r];
  for (const FlowMessage& message : peer.inbox.flow_messages()) {
    if (!peer.link || failure_) continue;
    peer.link->send({0, kFlow}, kControlPriority, message.encode());
    if (message.what == FlowMessage::kPause) ++pauses_;
  }
  if (peer.link) flush_peer(r);
}

void TcpTransport::handle_control(int r, std::uint64_t what, const ReceivedChunk& chunk) {
  if (what == kAbort) fail(decode_error({chunk.data(), chunk.bytes()}));
  if (what == kGoodbye) {
    peers_[r].says_goodbye = true;
    if (peers_[r].link->rails() > 1) {
      note_arrivals(r);
    } else {
      peers_[r].goodbye = true;
    }
    signal_event();
  }
  if (what == kFlow) {
    const auto message = FlowMessage::decode({chunk.data(), chunk.bytes()});
    if (message) peers_[r].link->obey(*message);
    flush_peer(r);
  }
  if (what == kRail) obey_report(r, chunk);
  if (what == kFirstRail) obey_first_report(r, chunk);
  if (what == kListener) keep_listener(r, chunk);
  if (what == kQuestion) answer_question(r, chunk);
  if (what == kAnswer) keep_answer(r, chunk);
}

// Every rank passes the cause on, once: a rank that has received it may end its process, and the
// ranks that see it gone must have received the cause before. Posted memory is given up and queued
// messages are dropped first, so that no caller's memory is used after `check` has thrown.
void TcpTransport::fail(const Error& cause) {
  if (failure_) return;
  failure_ = cause;
  failed_ = true;
  for (Peer& peer : peers_) {
    peer.inbox.forget_posted();
    if (!peer.link) continue;
    peer.link->forget_places();
    peer.link->drop_all();
  }
  // No connection is closed: this may run inside Link::receive of one of them, when a peer has sent
  // the cause. Each rail carries it, as far as it fits there: that of the first may be what broke.
  const Bytes words = encode(cause, Assembler::kPieceBytes);
  for (Peer& peer : peers_)
    if (peer.link && !peer.goodbye && !peer.finished) peer.link->send_last_words(words);
  send_control(kAbort, encode(cause));
  signal_event();
  wake_driver();
}

// Called with the lock held. The increment pairs with the acquire load in `events`: a thread that
// sees the new number sees what the event was about. A caller that read the old one before it
// looked returns from wait_for_event at once.
void TcpTransport::signal_event() {
  events_.fetch_add(1, std::memory_order_release);
  if (waiters_ > 0) changed_.notify_all();
}

// Called with the lock held. The driver may sleep in epoll_wait, where a change of `events_` does
// not reach it; callers that sleep on `changed_` are woken by signal_event.
void TcpTransport::wake_driver() {
  const std::uint64_t one = 1;
  if (!driving_) return;
  [[maybe_unused]] const auto n = write(wake_.get(), &one, sizeof one);
}

// A connection that breaks here is not closed: what the peer sent before it ended, its error first,
// may still be unread. Reading from it meets the break again.
void TcpTransport::flush_peer(int r) {
  Peer& peer = peers_[r];
  peer.unflushed = false;
  const auto before = peer.link->releases();
  try {
    peer.link->flush();
  } catch (const Error&) {
  }
  if (before != peer.link->releases()) signal_event();
  if (peer.goodbye_due && peer.link->idle()) {
    peer.goodbye_due = false;
    peer.link->send({0, kGoodbye}, 0, Bytes());
    return flush_peer(r);
  }
  // EPOLLOUT is watched only while the kernel's buffer is full: it is level-triggered.
  for (int rail = 0; rail < peer.link->rails(); ++rail) {
    if (peer.link->has_rail(rail))
      watch_rail(r, rail, peer.link->blocked(rail) ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

void TcpTransport::watch_rail(int r, int rail, std::uint32_t events) {
  RailState& state = peers_[r].rails[rail];
  if (state.ended || events == state.watched_events) return;
  epoll_event event{.events = events,
                    .data = {.u32 = static_cast<std::uint32_t>(r * kMostRails + rail)}};
  epoll_ctl(ready_.get(), EPOLL_CTL_MOD, peers_[r].link->fd(rail), &event);
  state.watched_events = events;
}

bool TcpTransport::send(int r, Stream stream, int priority, Bytes head,
                        std::span<const std::byte> body, Released released) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_.at(static_cast<std::size_t>(r));
  if (failure_) {
    // An operation that waits finds out.
    if (released) released->store(true);
    return true;
  }
  if (!peer.link || peer.goodbye) return false;
  // Nothing is written yet: `flush` writes the messages of several sends in one system call.
  peer.link->send(stream, priority, std::move(head), body, std::move(released));
  peer.unflushed = true;
  return true;
}

void TcpTransport::flush() {
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (peers_[r].unflushed && peers_[r].link) flush_peer(r);
}

std::optional<ReceivedChunk> TcpTransport::take(int r, Stream stream) {
  const std::lock_guard lock(mutex_);
  Inbox& inbox = peers_.at(static_cast<std::size_t>(r)).inbox;
  auto chunk = inbox.take(stream);
  if (inbox.has_flow_messages()) send_flow_messages(r);
  return chunk;
}

bool TcpTransport::has_arrived(int r, Stream stream) {
  const std::lock_guard lock(mutex_);
  Inbox& inbox = peers_.at(static_cast<std::size_t>(r)).inbox;
  const bool arrived = inbox.contains(stream);
  if (inbox.has_flow_messages()) send_flow_messages(r);
  return arrived;
}

void TcpTransport::post_receive(int r, Stream stream, std::shared_ptr<PostedReceive> receive) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_.at(static_cast<std::size_t>(r));
  peer.inbox.post(stream, std::move(receive));
  // Nothing arrives any more, and the caller's memory is not kept.
  if (failure_ || !peer.link) peer.inbox.forget_posted(stream);
  if (peer.inbox.has_flow_messages()) send_flow_messages(r);
}

void TcpTransport::release_buffers(Stream stream) {
  const std::lock_guard lock(mutex_);
  // Bytes are read from and written to sockets only under the lock, so no system call uses the
  // caller's memory at this moment, and none does later.
  for (Peer& peer : peers_) {
    peer.inbox.forget_posted(stream);
    if (!peer.link) continue;
    peer.link->forget_places(stream);
    peer.link->adopt(stream);
  }
}

bool TcpTransport::gone(int r) const {
  const std::lock_guard lock(mutex_);
  const Peer& peer = peers_.at(static_cast<std::size_t>(r));
  return peer.gone || peer.goodbye;
}

void TcpTransport::check() const {
  // The common case takes no lock. `failure_` was set before the flag and never changes again.
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  throw Error(*failure_);
}

// The caller may end its process at once: the cause is handed to the kernel before this returns, as
// far as it fits.
// Peers throw the error as it is, so it must name its rank.
void TcpTransport::abort(const Error& cause) {
  Error named = cause;
  if (named.rank() < 0) named.at(rank(), size());
  const std::lock_guard lock(mutex_);
  fail(named);
}

// At most one caller drives; the others sleep on `changed_` until it reports an event or stops.
// `driving_` changes only under the lock, and move_bytes releases the lock while it sleeps.
void TcpTransport::wait_for_event(std::uint64_t seen, Duration limit) {
  const auto until = Clock::now() + limit;
  std::unique_lock lock(mutex_);
  ++waiters_;
  changed_.wait_until(lock, until, [&] { return !driving_ || events_ != seen; });
  --waiters_;
  if (driving_ || events_ != seen) return;
  driving_ = true;
  const auto first = Clock::now();
  try {
    for (auto now = first; events_ == seen; now = Clock::now()) {
      // An answer often comes within microseconds, and a sleep costs several to wake from.
      const bool sleep = now < until && (!spins_ || now - first > kSpin);
      const int next = sleep || now >= until ? NextSpeaker::kNobody : next_speaker_.next();
      if (next != NextSpeaker::kNobody && peers_[next].rails.size() == 1) {
        serve(next, 0, EPOLLIN);
        continue;
      }
      move_bytes(lock,
                 sleep ? std::chrono::duration_cast<Duration>(until - now) : Duration::zero());
      if (now >= until) break;
    }
  } catch (const std::exception& error) {
    // The other waiters and the thread go on, and `check` tells all of them.
    fail_of_itself(error.what());
  }
  driving_ = false;
  last_driven_ = Clock::now();
  if (waiters_ > 0) changed_.notify_all();
}

std::uint64_t TcpTransport::bytes_sent(int r) const {
  const std::lock_guard lock(mutex_);
  const auto& peer = peers_.at(static_cast<std::size_t>(r));
  return peer.link ? peer.link->bytes_sent() : 0;
}

Duration TcpTransport::round_trip(int r) const {
  const std::lock_guard lock(mutex_);
  const auto& peer = peers_.at(static_cast<std::size_t>(r));
  return peer.link && peer.link->has_rail(0) ? least_round_trip_of(peer.link->fd(0)) : Duration();
}

std::uint64_t TcpTransport::bytes_received(int r) const {
  const std::lock_guard lock(mutex_);
  const auto& peer = peers_.at(static_cast<std::size_t>(r));
  return peer.link ? peer.link->bytes_received() : 0;
}

std::uint64_t TcpTransport::waiting_bytes(int r) const {
  const std::lock_guard lock(mutex_);
  return peers_.at(static_cast<std::size_t>(r)).inbox.bytes();
}

std::uint64_t TcpTransport::first_rails_replaced() const {
  const std::lock_guard lock(mutex_);
  return first_rails_replaced_;
}

std::uint64_t TcpTransport::pauses() const {
  const std::lock_guard lock(mutex_);
  return pauses_;
}

int TcpTransport::rails(int r) const {
  const std::lock_guard lock(mutex_);
  const auto& peer = peers_.at(static_cast<std::size_t>(r));
  return peer.link ? peer.link->rails() : 0;
}

bool TcpTransport::encrypted(int r) const {
  const std::lock_guard lock(mutex_);
  return peers_.at(static_cast<std::size_t>(r)).encrypted;
}

}  // namespace shoal::wire
