#include "shoal/wire/peers.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/system_error.h"
#include "shoal/wire/parking.h"

namespace shoal::wire {
namespace {

enum Control : std::uint64_t { kHeartbeat = 1, kAbort, kGoodbye, kQuestion, kAnswer };
constexpr int kUrgent = 1 << 30;
constexpr std::size_t kLongestAnswer = 4096;
constexpr std::uint32_t kNudge = ~std::uint32_t{0};  // in the place of a rank
constexpr Duration kSpin =
    std::chrono::microseconds(100);  // before a wait sleeps, where there are cores enough
constexpr Duration kAbsence =
    std::chrono::milliseconds(1);  // of those who wait, after which the thread moves the bytes
constexpr Duration kLookWhileDriven =
    std::chrono::milliseconds(5);  // how often it looks whether they have gone
constexpr Duration kLongest = std::chrono::milliseconds(250);

Hello hello_of(int rank, int size) {
  const std::int32_t words[4] = {rank, size, 0, 0};
  Hello hello;
  std::memcpy(hello.data(), words, sizeof words);
  return hello;
}

void check_descriptor(const Descriptor& descriptor) {
  if (descriptor.get() < 0)
    throw system_error(ErrorKind::kResource, "connect", "no descriptors left");
}

}  // namespace

/// What arrives from one peer.
class Peers::Arrivals final : public Intake {
 public:
  Arrivals(Peers& peers, int rank) : peers_(peers), rank_(rank) {}
  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset, std::size_t) override {
    auto& landings = peers_.peers_[rank_].landings;
    if (landings.empty()) return nullptr;
    const auto entry = landings.find(stream);
    if (entry == landings.end()) return nullptr;
    if (total == entry->second->bytes) return entry->second->data + offset;
    entry->second->actual = total;
    landings.erase(entry);
    return nullptr;
  }
  void arrived(Stream stream, Piece piece, std::size_t bytes) override {
    peers_.take_in(rank_, stream, std::move(piece), bytes);
  }

 private:
  Peers& peers_;
  int rank_;
};

Peers::Peers(const Settings& settings, KeyValues& store, int rank, int size, Deadline deadline)
    : settings_(settings),
      rank_(rank),
      size_(size),
      pool_(std::make_shared<ChunkPool>(Assembler::kChunkBytes)),
      peers_(static_cast<std::size_t>(size)),
      next_beat_(Clock::now()),
      ready_(epoll_create1(EPOLL_CLOEXEC)),
      nudge_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  SHOAL_USER_CHECK(size >= 1 && rank >= 0 && rank < size, "connect", "rank {} of {}", rank, size);
  check_descriptor(ready_), check_descriptor(nudge_);
  epoll_event event{.events = EPOLLIN, .data = {.u32 = kNudge}};
  epoll_ctl(ready_.get(), EPOLL_CTL_ADD, nudge_.get(), &event);
  const std::string host = settings.host.empty() ? store.address() : settings.host;
  Descriptor listener = listen_on(host, settings.ports);
  const auto key = [&](int r) { return fmt::format("peers/{}/{}", settings.name, r); };
  const std::string own = local_endpoint(listener.get()).text();
  door_ = std::make_unique<Door>(
      loop_, std::move(listener), settings.key,
      [this](Descriptor socket, const Hello& hello) { admit(std::move(socket), hello); });
  thread_ = std::thread([this] { run(); });
  try {
    store.set(key(rank), own, deadline);
    for (int r = 0; r < rank; ++r) {
      Descriptor socket = connect_to(parse_endpoint(store.wait(key(r), deadline)), deadline);
      introduce(socket.get(), settings.key, hello_of(rank, size), deadline);
      const std::lock_guard lock(mutex_);
      add(r, std::move(socket));
    }
    await_all(deadline);
  } catch (const Error& error) {
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

void Peers::await_all(Deadline deadline) {
  for (;;) {
    const auto seen = events();
    std::string missing;
    {
      const std::lock_guard lock(mutex_);
      for (int r = 0; r < size_; ++r)
        if (r != rank_ && !peers_[r].link && !peers_[r].gone) missing += fmt::format(" {}", r);
    }
    if (missing.empty()) return;
    check();  // whoever is missing may have gone for the reason that one who came tells
    if (deadline.passed()) {
      throw Error(ErrorKind::kTimeout, "connect", "these ranks did not come:" + missing)
          .at(rank_, size_)
          .hint("look at their logs");
    }
    wait_for_event(seen,
                   std::min<Duration>(deadline.left() + std::chrono::milliseconds(1), kLongest));
  }
}

void Peers::leave() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(left_, true)) tell_all(kGoodbye, {});
}

Peers::~Peers() {
  leave();
  {
    const std::lock_guard lock(mutex_);
    stop_by_ = Clock::now() + std::chrono::seconds(1);
  }
  loop_.wake();
  thread_.join();
}

// In the loop's thread. A member that claims to be a rank that is here already, or of another
// world, is not let in.
void Peers::admit(Descriptor socket, const Hello& hello) {
  std::int32_t words[4];
  std::memcpy(words, hello.data(), sizeof words);
  const std::lock_guard lock(mutex_);
  if (words[0] <= rank_ || words[0] >= size_ || words[1] != size_ || peers_[words[0]].link ||
      peers_[words[0]].gone)
    return;
  try {
    add(words[0], std::move(socket));
  } catch (const Error&) {  // it has hung up already
  }
}

void Peers::add(int rank, Descriptor socket) {
  const bool here = local_endpoint(socket.get()).host == remote_endpoint(socket.get()).host;
  epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<std::uint32_t>(rank)}};
  if (epoll_ctl(ready_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0)
    throw system_error(ErrorKind::kResource, "connect", "cannot watch a connection");
  Peer& peer = peers_[rank];
  peer.watched = EPOLLIN;
  peer.link = std::make_unique<Link>(std::move(socket), std::uint64_t{1} << 42, pool_);
  peer.heard = Clock::now();
  if (here) ++ranks_here_;
  spins_ = Patience::for_ranks(ranks_here_).spins() > 1;
  if (failure_) peer.link->send({0, kAbort}, kUrgent, encode(*failure_)), push(rank);
  happened();
  nudge();
}

void Peers::run() {
  bool attentive = false;
  for (;;) {
    Duration limit = std::min<Duration>(settings_.heartbeat, kLongest);
    {
      const std::lock_guard lock(mutex_);
      if (Clock::now() >= next_beat_) beat();
      const bool idle = std::all_of(peers_.begin(), peers_.end(),
                                    [](const Peer& p) { return !p.link || p.link->idle(); });
      if (stop_by_ && (idle || Clock::now() >= *stop_by_)) break;
      if (stop_by_) limit = std::chrono::milliseconds(10);
      const bool aside = !stop_by_ && (driving_ || Clock::now() - driven_ < kAbsence);
      if (aside) limit = std::min(limit, driving_ ? kLookWhileDriven : kAbsence);
      if (attentive == aside) attentive = !aside, attend(attentive);
    }
    loop_.run_once(limit);
    door_->tidy();
  }
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (peers_[r].link) close(r);
}

void Peers::attend(bool attentive) {
  if (!attentive) return loop_.forget(ready_.get());
  loop_.watch(ready_.get(), EPOLLIN, [this](std::uint32_t) {
    std::unique_lock lock(mutex_);
    if (!driving_) move_bytes(lock, Duration::zero());
  });
}

void Peers::beat() {
  const auto now = Clock::now();
  // Who was held up itself has not read what the others have sent meanwhile, and blames nobody
  // before it has.
  const bool held_up = now - next_beat_ > 2 * settings_.heartbeat;
  next_beat_ = now + settings_.heartbeat;
  tell_all(kHeartbeat, {});
  if (held_up) return;
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = peers_[r];
    if (!peer.link || peer.goodbye || now - peer.heard < settings_.silence) continue;
    const double seconds = std::chrono::duration<double>(now - peer.heard).count();
    fail(
        Error(ErrorKind::kPeerLost, "heartbeat",
              fmt::format("rank {} has been silent for {:.1f} s: it is stopped, or the link is cut",
                          r, seconds))
            .at(rank_, size_)
            .from(r));
  }
}

void Peers::tell_all(std::uint64_t what, const Bytes& message) {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    // Heartbeats do not pile up behind a peer that takes nothing.
    if (!peer.link || peer.goodbye || (what == kHeartbeat && !peer.link->idle({0, kHeartbeat})))
      continue;
    peer.link->send({0, what}, what == kGoodbye ? 0 : kUrgent, message);
    push(r);
  }
}

// The lock is open while the kernel is asked.
void Peers::move_bytes(std::unique_lock<std::mutex>& lock, Duration limit) {
  epoll_event events[16];
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  lock.unlock();
  const int n = epoll_wait(ready_.get(), events, 16, static_cast<int>(ms));
  lock.lock();
  for (int i = 0; i < n; ++i) {
    if (events[i].data.u32 != kNudge) {
      serve(static_cast<int>(events[i].data.u32), events[i].events);
      continue;
    }
    std::uint64_t count;
    [[maybe_unused]] const auto bytes = read(nudge_.get(), &count, sizeof count);
  }
}

void Peers::serve(int r, std::uint32_t events) {
  Peer& peer = peers_[r];
  if (!peer.link) return;
  if (events & EPOLLOUT) push(r);
  if ((events & ~std::uint32_t{EPOLLOUT}) == 0) return;
  const auto lost = [&](const std::string& how) {
    return Error(ErrorKind::kPeerLost, "receive", fmt::format("rank {} {}", r, how))
        .at(rank_, size_)
        .from(r);
  };
  // A peer that has heard this rank's goodbye goes without one.
  const auto may_go = [&] { return peer.goodbye || left_ || stop_by_; };
  try {
    Arrivals arrivals(*this, r);
    const bool open = peer.link->receive(arrivals);
    peer.heard = Clock::now();
    if (open) return;
    if (!may_go())
      fail(lost("closed its connection without a word: its process ended").hint("look at its log"));
  } catch (const Error& error) {
    if (!may_go()) fail(lost("is lost: " + error.message()));
  }
  close(r);
}

void Peers::close(int r) {
  Peer& peer = peers_[r];
  epoll_ctl(ready_.get(), EPOLL_CTL_DEL, peer.link->fd(), nullptr);
  peer.watched = 0;
  peer.link.reset();
  peer.landings.clear();
  peer.gone = true;
  happened();
}

void Peers::take_in(int r, Stream stream, Piece piece, std::size_t bytes) {
  Peer& peer = peers_[r];
  if (stream.group == 0) return control(r, stream.sequence, piece);
  const auto landing = peer.landings.find(stream);
  if (landing == peer.landings.end()) {
    peer.inbox[stream].push_back(std::move(piece));
  } else {
    Landing& to = *landing->second;
    if (piece.data()) std::memcpy(to.data + piece.offset(), piece.data(), bytes);
    to.arrived.store(piece.offset() + bytes, std::memory_order_release);
    if (piece.offset() + bytes == to.bytes) peer.landings.erase(landing);
  }
  happened();
}

void Peers::control(int r, std::uint64_t what, const Piece& piece) {
  if (what == kAbort) fail(decode_error({piece.data(), piece.bytes()}));
  if (what == kGoodbye) peers_[r].goodbye = true;
  if (what == kQuestion) answer(r, piece);
  if (what == kAnswer) hear_answer(r, piece);
}

// A question is a group; an answer is the group and what is said of it.
void Peers::answer(int r, const Piece& question) {
  std::uint64_t group = 0;
  if (question.bytes() != sizeof group || !peers_[r].link->idle({0, kAnswer})) return;
  std::memcpy(&group, question.data(), sizeof group);
  Bytes message(question.data(), question.data() + sizeof group);
  if (const auto entry = answers_.find(group); entry != answers_.end()) {
    const Bytes said = entry->second();
    message.insert(message.end(), said.begin(), said.end());
  }
  peers_[r].link->send({0, kAnswer}, kUrgent, std::move(message));
  push(r);
}

void Peers::hear_answer(int r, const Piece& piece) {
  std::uint64_t group = 0;
  if (piece.bytes() < sizeof group || piece.bytes() > sizeof group + kLongestAnswer) return;
  std::memcpy(&group, piece.data(), sizeof group);
  if (asked_ == group)
    peers_[r].said = Bytes(piece.data() + sizeof group, piece.data() + piece.bytes());
}

void Peers::answer_for(std::uint64_t group, std::function<Bytes()> say) {
  const std::lock_guard lock(mutex_);
  if (say) {
    answers_[group] = std::move(say);
  } else {
    answers_.erase(group);
  }
}

std::vector<std::optional<Bytes>> Peers::ask(std::uint64_t group, Duration patience) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&group);
  {
    const std::lock_guard lock(mutex_);
    asked_ = group;
    for (Peer& peer : peers_) peer.said.reset();
    tell_all(kQuestion, Bytes(bytes, bytes + sizeof group));
  }
  for (const Deadline end = Deadline::in(patience);;) {
    const auto seen = events();
    {
      const std::lock_guard lock(mutex_);
      const bool all = std::all_of(peers_.begin(), peers_.end(),
                                   [](const Peer& p) { return !p.link || p.goodbye || p.said; });
      if (all || failure_ || end.passed()) {
        std::vector<std::optional<Bytes>> said;
        for (Peer& peer : peers_) {
          said.push_back(peer.said && !peer.said->empty() ? std::exchange(peer.said, std::nullopt)
                                                          : std::nullopt);
        }
        asked_.reset();
        return said;
      }
    }
    wait_for_event(seen, std::min<Duration>(end.left(), std::chrono::milliseconds(10)));
  }
}

// Every rank passes the cause on, once: who has heard it may leave, and those who see it gone must
// have heard why.
void Peers::fail(const Error& cause) {
  if (failure_) return;
  failure_ = cause;
  failed_ = true;
  for (Peer& peer : peers_) {
    peer.landings.clear();
    if (peer.link) peer.link->forget_places(), peer.link->drop_all();
  }
  tell_all(kAbort, encode(cause));
  happened();
  nudge();
}

void Peers::happened() {
  events_.fetch_add(1, std::memory_order_release);
  if (bystanders_ > 0) changed_.notify_all();
}

void Peers::nudge() {
  const std::uint64_t one = 1;
  if (!driving_) return;
  [[maybe_unused]] const auto n = write(nudge_.get(), &one, sizeof one);
}

// A connection that breaks here is met again by whoever reads from it, its last words first.
void Peers::push(int r) {
  Peer& peer = peers_[r];
  peer.unflushed = false;
  bool done = true;
  const auto before = peer.link->releases();
  try {
    done = peer.link->flush();
  } catch (const Error&) {
  }
  if (before != peer.link->releases()) happened();
  const std::uint32_t wanted = done ? EPOLLIN : EPOLLIN | EPOLLOUT;
  if (wanted == peer.watched) return;
  epoll_event event{.events = wanted, .data = {.u32 = static_cast<std::uint32_t>(r)}};
  epoll_ctl(ready_.get(), EPOLL_CTL_MOD, peer.link->fd(), &event);
  peer.watched = wanted;
}

void Peers::send(int r, Stream stream, int priority, Bytes head, std::span<const std::byte> body,
                 Released released) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_.at(static_cast<std::size_t>(r));
  if (!peer.link || failure_) {  // gone; whoever waits for an answer finds out
    if (released) released->store(true);
    return;
  }
  peer.link->send(stream, priority, std::move(head), body, std::move(released));
  peer.unflushed = true;
}

void Peers::flush() {
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (peers_[r].unflushed && peers_[r].link) push(r);
}

std::optional<Piece> Peers::take(int r, Stream stream) {
  const std::lock_guard lock(mutex_);
  auto& inbox = peers_.at(static_cast<std::size_t>(r)).inbox;
  const auto entry = inbox.find(stream);
  if (entry == inbox.end()) return std::nullopt;
  Piece piece = std::move(entry->second.front());
  entry->second.pop_front();
  if (entry->second.empty()) inbox.erase(entry);
  return piece;
}

bool Peers::has_arrived(int r, Stream stream) const {
  const std::lock_guard lock(mutex_);
  return peers_.at(static_cast<std::size_t>(r)).inbox.contains(stream);
}

void Peers::land(int r, Stream stream, std::shared_ptr<Landing> landing) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_.at(static_cast<std::size_t>(r));
  if (const auto entry = peer.inbox.find(stream); entry != peer.inbox.end()) {
    auto& pieces = entry->second;
    while (!pieces.empty() && landing->arrived < landing->bytes) {
      const Piece& piece = pieces.front();
      if (piece.total() != landing->bytes) {
        landing->actual = piece.total();
        return;
      }
      std::memcpy(landing->data + piece.offset(), piece.data(), piece.bytes());
      landing->arrived = piece.offset() + piece.bytes();
      pieces.pop_front();
    }
    if (pieces.empty()) peer.inbox.erase(entry);
  }
  if (landing->arrived < landing->bytes && !failure_ && peer.link)
    peer.landings[stream] = std::move(landing);
}

void Peers::let_go(Stream stream) {
  const std::lock_guard lock(mutex_);
  for (Peer& peer : peers_) {
    peer.landings.erase(stream);
    if (peer.link) peer.link->forget_places(stream), peer.link->adopt(stream);
  }
}

bool Peers::gone(int r) const {
  const std::lock_guard lock(mutex_);
  return peers_.at(static_cast<std::size_t>(r)).gone;
}

void Peers::check() const {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  throw Error(*failure_);
}

// The caller may end its process at once: its words are handed to the kernel before this returns,
// as far as they fit.
void Peers::abort(const Error& cause) {
  const std::lock_guard lock(mutex_);
  fail(cause);
}

void Peers::wait_for_event(std::uint64_t seen, Duration limit) {
  const auto until = Clock::now() + limit;
  std::unique_lock lock(mutex_);
  ++bystanders_;
  changed_.wait_until(lock, until, [&] { return !driving_ || events_ != seen; });
  --bystanders_;
  if (driving_ || events_ != seen) return;
  driving_ = true;
  const auto first = Clock::now();
  for (auto now = first; events_ == seen; now = Clock::now()) {
    const bool sleep = now < until && (!spins_ || now - first > kSpin);
    move_bytes(lock, sleep ? std::chrono::duration_cast<Duration>(until - now) : Duration::zero());
    if (now >= until) break;
  }
  driving_ = false;
  driven_ = Clock::now();
  if (bystanders_ > 0) changed_.notify_all();
}

std::uint64_t Peers::bytes_sent(int r) const {
  const std::lock_guard lock(mutex_);
  const auto& peer = peers_.at(static_cast<std::size_t>(r));
  return peer.link ? peer.link->bytes_sent() : 0;
}

std::uint64_t Peers::bytes_received(int r) const {
  const std::lock_guard lock(mutex_);
  const auto& peer = peers_.at(static_cast<std::size_t>(r));
  return peer.link ? peer.link->bytes_received() : 0;
}

}  // namespace shoal::wire
