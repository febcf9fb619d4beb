#include "shoal/wire/tcp_transport.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/duration.h"
#include "shoal/base/system_error.h"
#include "shoal/wire/parking.h"

namespace shoal::wire {
namespace {

/// Messages of the transport itself travel on streams {0, Control}.
enum Control : std::uint64_t { kHeartbeat = 1, kAbort, kGoodbye, kQuestion, kAnswer };
constexpr int kControlPriority = 1 << 30;
constexpr std::size_t kMaxAnswerBytes = 4096;
/// Marks the eventfd in an epoll event, whose number is otherwise a rank.
constexpr std::uint32_t kWake = ~std::uint32_t{0};
/// A driver spins for so long before it sleeps, where every rank has a core.
constexpr Duration kSpin = std::chrono::microseconds(100);
/// The thread moves the bytes when no caller has waited for so long.
constexpr Duration kTakeOverAfter = std::chrono::milliseconds(1);
/// The thread looks so often whether the driver is still there.
constexpr Duration kPollDriver = std::chrono::milliseconds(5);
constexpr Duration kMaxWait = std::chrono::milliseconds(250);

Hello hello_of(int rank, int size) {
  const std::int32_t fields[4] = {rank, size, 0, 0};
  Hello hello;
  std::memcpy(hello.data(), fields, sizeof fields);
  return hello;
}

void check_descriptor(const Descriptor& descriptor) {
  if (descriptor.get() < 0)
    throw system_error(ErrorKind::kResource, "connect", "no descriptors left");
}

}  // namespace

/// Receives the chunks of one peer; runs under the lock, within Link::receive.
class TcpTransport::PeerSink final : public ChunkSink {
 public:
  PeerSink(TcpTransport& transport, int rank) : transport_(transport), rank_(rank) {}

  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset, std::size_t) override {
    auto& posted = transport_.peers_[rank_].posted;
    if (posted.empty()) return nullptr;
    const auto entry = posted.find(stream);
    if (entry == posted.end()) return nullptr;
    if (total == entry->second->bytes) return entry->second->data + offset;
    // Another message than was posted for: the operation learns its size and takes its chunks.
    entry->second->actual = total;
    posted.erase(entry);
    return nullptr;
  }

  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    transport_.deliver(rank_, stream, std::move(chunk), bytes);
  }

 private:
  TcpTransport& transport_;
  int rank_;
};

TcpTransport::TcpTransport(const Options& options, KeyValues& store, int rank, int size,
                           Deadline deadline)
    : options_(options),
      rank_(rank),
      size_(size),
      pool_(std::make_shared<ChunkPool>(Assembler::kChunkBytes)),
      peers_(static_cast<std::size_t>(size)),
      next_heartbeat_(Clock::now()),
      ready_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  SHOAL_USER_CHECK(size >= 1 && rank >= 0 && rank < size, "connect", "rank {} of {}", rank, size);
  check_descriptor(ready_);
  check_descriptor(wake_);
  epoll_event event{.events = EPOLLIN, .data = {.u32 = kWake}};
  epoll_ctl(ready_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  const std::string host = options.host.empty() ? store.address() : options.host;
  Descriptor listener = listen_on(host, options.ports);
  const auto key = [&](int r) { return fmt::format("peers/{}/{}", options.name, r); };
  const std::string own = local_endpoint(listener.get()).text();
  acceptor_ = std::make_unique<Acceptor>(
      loop_, std::move(listener), options.key,
      [this](Descriptor socket, const Hello& hello) { admit(std::move(socket), hello); });
  // From here on the thread admits higher ranks, while this one connects to the lower ones: no
  // order in which ranks start can deadlock.
  thread_ = std::thread([this] { run(); });
  try {
    // Each pair has one connection: the higher rank connects, the lower one accepts. An address is
    // published only after its owner listens, so a connection attempt finds a socket.
    store.set(key(rank), own, deadline);
    for (int r = 0; r < rank; ++r) {
      Descriptor socket = connect_to(parse_endpoint(store.wait(key(r), deadline)), deadline);
      handshake_as_caller(socket.get(), options.key, hello_of(rank, size), deadline);
      const std::lock_guard lock(mutex_);
      add_peer(r, std::move(socket));
    }
    await_all(deadline);
  } catch (const Error& error) {
    // The ranks that came learn why; the destructor does not run, so the thread ends here.
    abort(error);
    {
      const std::lock_guard lock(mutex_);
      stop_by_ = Clock::now() + std::chrono::seconds(1);
    }
    loop_.wake();
    thread_.join();
    throw;
  }
}

void TcpTransport::await_all(Deadline deadline) {
  for (;;) {
    const auto seen = events();
    std::string missing;
    {
      const std::lock_guard lock(mutex_);
      for (int r = 0; r < size_; ++r)
        if (r != rank_ && !peers_[r].link && !peers_[r].gone) missing += fmt::format(" {}", r);
    }
    if (missing.empty()) return;
    // A rank that did come may report why the missing ones did not.
    check();
    if (deadline.passed()) {
      throw Error(ErrorKind::kTimeout, "connect", "these ranks did not come:" + missing)
          .at(rank_, size_)
          .hint("look at their logs");
    }
    wait_for_event(seen,
                   std::min<Duration>(deadline.left() + std::chrono::milliseconds(1), kMaxWait));
  }
}

// A rank that has received the goodbye does not treat the end of this connection as a failure. What
// was queued before it is still written, see `finish_sending`.
void TcpTransport::leave() {
  const std::lock_guard lock(mutex_);
  if (left_) return;
  left_ = true;
  send_control(kGoodbye, {});
}

TcpTransport::~TcpTransport() {
  leave();
  {
    const std::lock_guard lock(mutex_);
    stop_by_ = Clock::now() + std::chrono::seconds(1);
  }
  loop_.wake();
  thread_.join();
}

// Runs in the thread. A connection that claims to be a rank that is here already, a lower rank
// (which never connects), or a rank of a world of another size is closed.
void TcpTransport::admit(Descriptor socket, const Hello& hello) {
  std::int32_t fields[4];
  std::memcpy(fields, hello.data(), sizeof fields);
  const auto [rank, size] = std::pair(fields[0], fields[1]);
  const std::lock_guard lock(mutex_);
  if (rank <= rank_ || rank >= size_ || size != size_ || peers_[rank].link || peers_[rank].gone)
    return;
  try {
    add_peer(rank, std::move(socket));
  } catch (const Error&) {  // it has closed the connection already
  }
}

void TcpTransport::add_peer(int rank, Descriptor socket) {
  const bool here = local_endpoint(socket.get()).host == remote_endpoint(socket.get()).host;
  epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<std::uint32_t>(rank)}};
  if (epoll_ctl(ready_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0)
    throw system_error(ErrorKind::kResource, "connect", "cannot watch a connection");
  Peer& peer = peers_[rank];
  peer.watched_events = EPOLLIN;
  peer.link = std::make_unique<Link>(std::move(socket), std::uint64_t{1} << 42, pool_);
  peer.last_received = Clock::now();
  if (here) ++ranks_here_;
  spins_ = SpinPolicy::for_ranks(ranks_here_).spins() > 1;
  if (failure_) {
    // It came after the failure was sent to all: it gets the cause now.
    peer.link->send({0, kAbort}, kControlPriority, encode(*failure_));
    flush_peer(rank);
  }
  signal_event();
  wake_driver();
}

// The thread. While a caller drives, or did a moment ago, the thread only accepts connections and
// sends heartbeats: two threads in epoll_wait on the same set would wake each other for nothing.
void TcpTransport::run() {
  bool watching = false;
  for (;;) {
    Duration limit = std::min<Duration>(options_.heartbeat, kMaxWait);
    {
      const std::lock_guard lock(mutex_);
      if (Clock::now() >= next_heartbeat_) send_heartbeats();
      if (stop_by_) finish_sending();
      const bool all_closed =
          std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return !p.link; });
      if (stop_by_ && (all_closed || Clock::now() >= *stop_by_)) break;
      if (stop_by_) limit = std::chrono::milliseconds(10);
      const bool aside = !stop_by_ && (driving_ || Clock::now() - last_driven_ < kTakeOverAfter);
      if (aside) limit = std::min(limit, driving_ ? kPollDriver : kTakeOverAfter);
      if (watching == aside) {
        watching = !aside;
        watch_connections(watching);
      }
    }
    loop_.run_once(limit);
    acceptor_->drop_expired();
  }
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (peers_[r].link) close(r);
}

// A connection that is closed before its peer's end is read resets it: the kernel then drops what
// it has not delivered yet, the goodbye too, and the peer would take this rank for lost. So a rank
// that leaves says that nothing more comes and reads on, until the peer has closed as well (see
// `serve`).
void TcpTransport::finish_sending() {
  for (Peer& peer : peers_) {
    if (!peer.link || peer.finished || !peer.link->idle()) continue;
    peer.link->finish_sending();
    peer.finished = true;
  }
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
  // A rank that was held up itself has not read what the others have sent meanwhile. It blames
  // no peer before the next heartbeat, by when it has.
  const bool held_up = now - next_heartbeat_ > 2 * options_.heartbeat;
  next_heartbeat_ = now + options_.heartbeat;
  send_control(kHeartbeat, {});
  if (held_up) return;
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = peers_[r];
    if (!peer.link || peer.goodbye || now - peer.last_received < options_.silence) continue;
    const double seconds = to_seconds(now - peer.last_received);
    fail(
        Error(ErrorKind::kPeerLost, "heartbeat",
              fmt::format("rank {} has been silent for {:.1f} s: it is stopped, or the link is cut",
                          r, seconds))
            .at(rank_, size_)
            .from(r));
  }
}

void TcpTransport::send_control(std::uint64_t what, const Bytes& message) {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link || peer.goodbye || peer.finished) continue;
    // Heartbeats do not pile up behind a peer that takes nothing.
    if (what == kHeartbeat && !peer.link->idle({0, kHeartbeat})) continue;
    // A goodbye waits for what was sent before it; everything else overtakes.
    peer.link->send({0, what}, what == kGoodbye ? 0 : kControlPriority, message);
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
    if (events[i].data.u32 != kWake) {
      serve(static_cast<int>(events[i].data.u32), events[i].events);
      continue;
    }
    std::uint64_t count;
    [[maybe_unused]] const auto bytes = read(wake_.get(), &count, sizeof count);
  }
}

void TcpTransport::serve(int r, std::uint32_t events) {
  Peer& peer = peers_[r];
  // The connection may have been closed while the lock was released.
  if (!peer.link) return;
  // EPOLLERR and EPOLLHUP come without being asked for. They are read like data, because bytes that
  // the peer sent before its end come first.
  if (events & EPOLLOUT) flush_peer(r);
  if ((events & ~std::uint32_t{EPOLLOUT}) == 0) return;
  const auto lost = [&](const std::string& how) {
    return Error(ErrorKind::kPeerLost, "receive", fmt::format("rank {} {}", r, how))
        .at(rank_, size_)
        .from(r);
  };
  // A peer that has received this rank's goodbye may close without one of its own.
  const auto may_close = [&] { return peer.goodbye || left_ || stop_by_; };
  try {
    PeerSink sink(*this, r);
    const bool open = peer.link->receive(sink);
    peer.last_received = Clock::now();
    if (open) return;
    if (!may_close()) {
      fail(lost("closed its connection and left no error report: its process ended")
               .hint("look at its log"));
    }
  } catch (const Error& error) {
    if (!may_close()) fail(lost("is lost: " + error.message()));
  }
  close(r);
}

void TcpTransport::close(int r) {
  Peer& peer = peers_[r];
  epoll_ctl(ready_.get(), EPOLL_CTL_DEL, peer.link->fd(), nullptr);
  peer.watched_events = 0;
  peer.link.reset();
  peer.posted.clear();
  peer.gone = true;
  signal_event();
}

void TcpTransport::deliver(int r, Stream stream, ReceivedChunk chunk, std::size_t bytes) {
  Peer& peer = peers_[r];
  if (stream.group == 0) return handle_control(r, stream.sequence, chunk);
  const auto posted = peer.posted.find(stream);
  if (posted == peer.posted.end()) {
    peer.inbox[stream].push_back(std::move(chunk));
    return signal_event();
  }
  // A chunk with memory of its own began to arrive before the receive was posted; the bytes of any
  // other are in place already, and `place` has compared the sizes.
  PostedReceive& to = *posted->second;
  if (chunk.data() && chunk.total() != to.bytes) {
    to.actual = chunk.total();
    peer.posted.erase(posted);
    peer.inbox[stream].push_back(std::move(chunk));
    return signal_event();
  }
  if (chunk.data()) std::memcpy(to.data + chunk.offset(), chunk.data(), bytes);
  // Stored after the bytes: the operation reads `arrived` without the lock.
  to.arrived.store(chunk.offset() + bytes, std::memory_order_release);
  if (chunk.offset() + bytes == to.bytes) peer.posted.erase(posted);
  signal_event();
}

void TcpTransport::handle_control(int r, std::uint64_t what, const ReceivedChunk& chunk) {
  if (what == kAbort) fail(decode_error({chunk.data(), chunk.bytes()}));
  if (what == kGoodbye) peers_[r].goodbye = true;
  if (what == kQuestion) answer_question(r, chunk);
  if (what == kAnswer) keep_answer(r, chunk);
}

// A question is the number of a group; an answer is that number and the status of the group. A
// peer that does not read its answers gets no further ones.
void TcpTransport::answer_question(int r, const ReceivedChunk& question) {
  std::uint64_t group = 0;
  if (question.bytes() != sizeof group || !peers_[r].link->idle({0, kAnswer})) return;
  std::memcpy(&group, question.data(), sizeof group);
  Bytes message(question.data(), question.data() + sizeof group);
  if (const auto entry = answers_.find(group); entry != answers_.end()) {
    const Bytes answer = entry->second();
    message.insert(message.end(), answer.begin(), answer.end());
  }
  peers_[r].link->send({0, kAnswer}, kControlPriority, std::move(message));
  flush_peer(r);
}

void TcpTransport::keep_answer(int r, const ReceivedChunk& answer) {
  std::uint64_t group = 0;
  if (answer.bytes() < sizeof group || answer.bytes() > sizeof group + kMaxAnswerBytes) return;
  std::memcpy(&group, answer.data(), sizeof group);
  // A late answer to an earlier question is dropped.
  if (asked_ == group)
    peers_[r].answer = Bytes(answer.data() + sizeof group, answer.data() + answer.bytes());
}

void TcpTransport::answer_for(std::uint64_t group, std::function<Bytes()> answer) {
  const std::lock_guard lock(mutex_);
  if (answer) {
    answers_[group] = std::move(answer);
  } else {
    answers_.erase(group);
  }
}

std::vector<std::optional<Bytes>> TcpTransport::ask(std::uint64_t group, Duration longest) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&group);
  {
    const std::lock_guard lock(mutex_);
    asked_ = group;
    for (Peer& peer : peers_) peer.answer.reset();
    send_control(kQuestion, Bytes(bytes, bytes + sizeof group));
  }
  // A second question of another thread would replace this one; the answers to the first are then
  // missing, which its caller must expect anyway.
  for (const Deadline end = Deadline::in(longest);;) {
    const auto seen = events();
    {
      const std::lock_guard lock(mutex_);
      const bool all = std::all_of(peers_.begin(), peers_.end(),
                                   [](const Peer& p) { return !p.link || p.goodbye || p.answer; });
      if (all || failure_ || end.passed()) {
        std::vector<std::optional<Bytes>> answers;
        for (Peer& peer : peers_) {
          // An empty answer comes from a rank that does not know the group.
          const bool known = peer.answer && !peer.answer->empty();
          answers.push_back(known ? std::exchange(peer.answer, std::nullopt) : std::nullopt);
        }
        asked_.reset();
        return answers;
      }
    }
    wait_for_event(seen, std::min<Duration>(end.left(), std::chrono::milliseconds(10)));
  }
}

// Every rank passes the cause on, once: a rank that has received it may end its process, and the
// ranks that see it gone must have received the cause before. Posted memory is given up and queued
// messages are dropped first, so that no caller's memory is used after `check` has thrown.
void TcpTransport::fail(const Error& cause) {
  if (failure_) return;
  failure_ = cause;
  failed_ = true;
  for (Peer& peer : peers_) {
    peer.posted.clear();
    if (!peer.link) continue;
    peer.link->forget_places();
    peer.link->drop_all();
  }
  // No connection is closed: this may run inside Link::receive of one of them, when a peer has sent
  // the cause.
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
  bool done = true;
  const auto before = peer.link->releases();
  try {
    done = peer.link->flush();
  } catch (const Error&) {
  }
  if (before != peer.link->releases()) signal_event();
  // EPOLLOUT is watched only while the kernel's buffer is full: it is level-triggered.
  const std::uint32_t wanted = done ? EPOLLIN : EPOLLIN | EPOLLOUT;
  if (wanted == peer.watched_events) return;
  epoll_event event{.events = wanted, .data = {.u32 = static_cast<std::uint32_t>(r)}};
  epoll_ctl(ready_.get(), EPOLL_CTL_MOD, peer.link->fd(), &event);
  peer.watched_events = wanted;
}

void TcpTransport::send(int r, Stream stream, int priority, Bytes head,
                        std::span<const std::byte> body, Released released) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_.at(static_cast<std::size_t>(r));
  if (!peer.link || failure_) {
    // The peer is gone, or everything has failed: an operation that waits for an answer finds out.
    if (released) released->store(true);
    return;
  }
  // Nothing is written yet: `flush` writes the messages of several sends in one system call.
  peer.link->send(stream, priority, std::move(head), body, std::move(released));
  peer.unflushed = true;
}

void TcpTransport::flush() {
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (peers_[r].unflushed && peers_[r].link) flush_peer(r);
}

std::optional<ReceivedChunk> TcpTransport::take(int r, Stream stream) {
  const std::lock_guard lock(mutex_);
  auto& inbox = peers_.at(static_cast<std::size_t>(r)).inbox;
  const auto entry = inbox.find(stream);
  if (entry == inbox.end()) return std::nullopt;
  ReceivedChunk chunk = std::move(entry->second.front());
  entry->second.pop_front();
  if (entry->second.empty()) inbox.erase(entry);
  return chunk;
}

bool TcpTransport::has_arrived(int r, Stream stream) const {
  const std::lock_guard lock(mutex_);
  return peers_.at(static_cast<std::size_t>(r)).inbox.contains(stream);
}

void TcpTransport::post_receive(int r, Stream stream, std::shared_ptr<PostedReceive> receive) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_.at(static_cast<std::size_t>(r));
  // Chunks of the message that came before the receive was posted lie in the inbox.
  if (const auto entry = peer.inbox.find(stream); entry != peer.inbox.end()) {
    auto& chunks = entry->second;
    while (!chunks.empty() && receive->arrived < receive->bytes) {
      const ReceivedChunk& chunk = chunks.front();
      if (chunk.total() != receive->bytes) {
        receive->actual = chunk.total();
        return;
      }
      std::memcpy(receive->data + chunk.offset(), chunk.data(), chunk.bytes());
      receive->arrived = chunk.offset() + chunk.bytes();
      chunks.pop_front();
    }
    if (chunks.empty()) peer.inbox.erase(entry);
  }
  if (receive->arrived < receive->bytes && !failure_ && peer.link)
    peer.posted[stream] = std::move(receive);
}

void TcpTransport::release_buffers(Stream stream) {
  const std::lock_guard lock(mutex_);
  // Bytes are read from and written to sockets only under the lock, so no system call uses the
  // caller's memory at this moment, and none does later.
  for (Peer& peer : peers_) {
    peer.posted.erase(stream);
    if (!peer.link) continue;
    peer.link->forget_places(stream);
    peer.link->adopt(stream);
  }
}

bool TcpTransport::gone(int r) const {
  const std::lock_guard lock(mutex_);
  return peers_.at(static_cast<std::size_t>(r)).gone;
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
  for (auto now = first; events_ == seen; now = Clock::now()) {
    // An answer often comes within microseconds, and a sleep costs several to wake from.
    const bool sleep = now < until && (!spins_ || now - first > kSpin);
    move_bytes(lock, sleep ? std::chrono::duration_cast<Duration>(until - now) : Duration::zero());
    if (now >= until) break;
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

std::uint64_t TcpTransport::bytes_received(int r) const {
  const std::lock_guard lock(mutex_);
  const auto& peer = peers_.at(static_cast<std::size_t>(r));
  return peer.link ? peer.link->bytes_received() : 0;
}

}  // namespace shoal::wire
