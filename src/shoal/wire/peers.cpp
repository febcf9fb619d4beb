#include "shoal/wire/peers.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/check.h"

namespace shoal::wire {
namespace {

enum Control : std::uint64_t { kHeartbeat = 1, kAbort, kGoodbye };
constexpr int kUrgent = 1 << 30;
constexpr std::size_t kMostText = 16 << 10;

struct ErrorHeader {
  std::uint32_t kind = 0;
  std::int32_t rank = -1, size = -1, peer = -1;
  std::uint64_t sequence = 0;
  std::uint32_t lengths[4] = {};
};

Hello hello_of(int rank, int size) {
  const std::int32_t words[4] = {rank, size, 0, 0};
  Hello hello;
  std::memcpy(hello.data(), words, sizeof words);
  return hello;
}

}  // namespace

Bytes encode(const Error& error) {
  ErrorHeader header{static_cast<std::uint32_t>(error.kind()), error.rank(), error.size(), error.peer(), error.sequence(), {}};
  const std::string texts[] = {error.operation().substr(0, kMostText), error.message().substr(0, kMostText), error.awaited().substr(0, kMostText),
                               error.hint().substr(0, kMostText)};
  Bytes bytes(sizeof header);
  for (int i = 0; i < 4; ++i) {
    header.lengths[i] = static_cast<std::uint32_t>(texts[i].size());
    const auto* text = reinterpret_cast<const std::byte*>(texts[i].data());
    bytes.insert(bytes.end(), text, text + texts[i].size());
  }
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

Error decode_error(const Bytes& bytes) {
  const Error unreadable(ErrorKind::kAborted, "abort", "another rank stopped the job with words that cannot be read");
  ErrorHeader header;
  if (bytes.size() < sizeof header) return unreadable;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::string texts[4];
  std::size_t at = sizeof header;
  for (int i = 0; i < 4; ++i) {
    if (header.lengths[i] > kMostText || header.lengths[i] > bytes.size() - at) return unreadable;
    texts[i].assign(reinterpret_cast<const char*>(bytes.data()) + at, header.lengths[i]);
    at += header.lengths[i];
  }
  if (header.kind > static_cast<std::uint32_t>(ErrorKind::kAborted)) return unreadable;
  Error error(static_cast<ErrorKind>(header.kind), texts[0], texts[1]);
  return error.at(header.rank, header.size).from(header.peer).in(header.sequence).awaiting(texts[2]).hint(texts[3]);
}

Peers::Peers(const Settings& settings, StoreClient& store, int rank, int size, Deadline deadline)
    : settings_(settings), rank_(rank), size_(size), peers_(static_cast<std::size_t>(size)), next_beat_(Clock::now()) {
  SHOAL_USER_CHECK(size >= 1 && rank >= 0 && rank < size, "connect", "rank {} of {}", rank, size);
  const std::string host = settings.host.empty() ? store.local().host : settings.host;
  Descriptor listener = listen_on(host, settings.ports);
  const auto key = [&](int r) { return fmt::format("peers/{}/{}", settings.name, r); };
  const std::string own = local_endpoint(listener.get()).text();
  door_ = std::make_unique<Door>(loop_, std::move(listener), settings.key,
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
    for (;;) {
      const auto seen = events();
      std::string missing;
      {
        const std::lock_guard lock(mutex_);
        for (int r = 0; r < size; ++r)
          if (r != rank && !peers_[r].link && !peers_[r].gone) missing += fmt::format(" {}", r);
      }
      if (missing.empty()) break;
      if (deadline.passed())
        throw Error(ErrorKind::kTimeout, "connect", "these ranks did not come:" + missing).at(rank, size).hint("look at their logs");
      wait_for_event(seen, std::min<Duration>(deadline.left() + std::chrono::milliseconds(1), std::chrono::seconds(1)));
    }
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

Peers::~Peers() {
  {
    const std::lock_guard lock(mutex_);
    tell_all(kGoodbye, {});
    stop_by_ = Clock::now() + std::chrono::seconds(1);
  }
  loop_.wake();
  thread_.join();
}

// In the loop's thread. A member that claims to be a rank that is here already, or of another world, is not let in.
void Peers::admit(Descriptor socket, const Hello& hello) {
  std::int32_t words[4];
  std::memcpy(words, hello.data(), sizeof words);
  const std::lock_guard lock(mutex_);
  if (words[0] <= rank_ || words[0] >= size_ || words[1] != size_ || peers_[words[0]].link || peers_[words[0]].gone) return;
  add(words[0], std::move(socket));
}

void Peers::add(int rank, Descriptor socket) {
  Peer& peer = peers_[rank];
  peer.link = std::make_unique<Link>(std::move(socket));
  peer.heard = Clock::now();
  if (failure_) peer.link->send({0, kAbort}, kUrgent, encode(*failure_));
  ++events_;
  changed_.notify_all();
  loop_.wake();
}

void Peers::run() {
  for (bool stopping = false;;) {
    {
      const std::lock_guard lock(mutex_);
      if (Clock::now() >= next_beat_) beat();
      look_out();
      const bool idle = std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return !p.link || p.link->idle(); });
      stopping = stop_by_.has_value();
      if (stop_by_ && (idle || Clock::now() >= *stop_by_)) break;
    }
    loop_.run_once(stopping ? Duration(std::chrono::milliseconds(10)) : std::min<Duration>(settings_.heartbeat, std::chrono::milliseconds(250)));
    door_->tidy();
  }
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (peers_[r].link) close(r);
}

void Peers::beat() {
  const auto now = Clock::now();
  next_beat_ = now + settings_.heartbeat;
  tell_all(kHeartbeat, {});
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = peers_[r];
    if (!peer.link || peer.goodbye || now - peer.heard < settings_.silence) continue;
    const double seconds = std::chrono::duration<double>(now - peer.heard).count();
    fail(Error(ErrorKind::kPeerLost, "heartbeat", fmt::format("rank {} has been silent for {:.1f} s: it is stopped, or the link is cut", r, seconds))
             .at(rank_, size_)
             .from(r),
         true);
  }
}

void Peers::tell_all(std::uint64_t what, const Bytes& message) {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    // Heartbeats do not pile up behind a peer that takes nothing.
    if (!peer.link || peer.goodbye || (what == kHeartbeat && !peer.link->idle({0, kHeartbeat}))) continue;
    peer.link->send({0, what}, what == kGoodbye ? 0 : kUrgent, message);
  }
}

void Peers::look_out() {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (!peer.link) continue;
    try {
      const std::uint32_t wanted = peer.link->flush() ? EPOLLIN : EPOLLIN | EPOLLOUT;
      if (std::exchange(peer.watched, wanted) != wanted) loop_.watch(peer.link->fd(), wanted, [this, r](std::uint32_t) { serve(r); });
    } catch (const Error&) {
      // Its last words may still lie in the socket.
      peer.watched = EPOLLIN;
      loop_.watch(peer.link->fd(), EPOLLIN, [this, r](std::uint32_t) { serve(r); });
    }
  }
}

void Peers::serve(int r) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[r];
  if (!peer.link) return;
  const auto lost = [&](const std::string& how) {
    return Error(ErrorKind::kPeerLost, "receive", fmt::format("rank {} {}", r, how)).at(rank_, size_).from(r);
  };
  try {
    const bool open = peer.link->receive([&](Stream stream, Bytes message) { take_in(r, stream, std::move(message)); });
    peer.heard = Clock::now();
    if (open) return;
    if (!peer.goodbye) fail(lost("closed its connection without a word: its process ended").hint("look at its log"), true);
  } catch (const Error& error) {
    if (!peer.goodbye) fail(lost("is lost: " + error.message()), true);
  }
  close(r);
}

void Peers::close(int r) {
  Peer& peer = peers_[r];
  if (peer.watched != 0) loop_.forget(peer.link->fd());
  peer.watched = 0;
  peer.link.reset();
  peer.gone = true;
  ++events_;
  changed_.notify_all();
}

void Peers::take_in(int r, Stream stream, Bytes message) {
  Peer& peer = peers_[r];
  if (stream.group == 0) {
    if (stream.sequence == kAbort) fail(decode_error(message), false);
    if (stream.sequence == kGoodbye) peer.goodbye = true;
    return;
  }
  peer.inbox[stream].push_back(std::move(message));
  ++events_;
  changed_.notify_all();
}

void Peers::fail(const Error& cause, bool tell) {
  if (failure_) return;
  failure_ = cause;
  if (tell) tell_all(kAbort, encode(cause));
  ++events_;
  changed_.notify_all();
}

bool Peers::push(Peer& peer) {
  try {
    return peer.link->flush();
  } catch (const Error&) {  // the loop meets it again, and reads its last words first
    return false;
  }
}

void Peers::send(int r, Stream stream, int priority, Bytes message) {
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_.at(static_cast<std::size_t>(r));
    if (!peer.link) return;  // gone; whoever waits for an answer finds out
    peer.link->send(stream, priority, std::move(message));
    if (push(peer)) return;
  }
  loop_.wake();
}

std::optional<Bytes> Peers::take(int r, Stream stream) {
  const std::lock_guard lock(mutex_);
  auto& inbox = peers_.at(static_cast<std::size_t>(r)).inbox;
  const auto entry = inbox.find(stream);
  if (entry == inbox.end()) return std::nullopt;
  Bytes message = std::move(entry->second.front());
  entry->second.pop_front();
  if (entry->second.empty()) inbox.erase(entry);
  return message;
}

bool Peers::gone(int r) const {
  const std::lock_guard lock(mutex_);
  return peers_.at(static_cast<std::size_t>(r)).gone;
}

void Peers::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
}

void Peers::abort(const Error& cause) {
  {
    const std::lock_guard lock(mutex_);
    fail(cause, true);
    // The caller may end its process at once: its words are handed to the kernel before this returns, as far as they fit.
    for (Peer& peer : peers_)
      if (peer.link) push(peer);
  }
  loop_.wake();
}

std::uint64_t Peers::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

void Peers::wait_for_event(std::uint64_t seen, Duration limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return events_ != seen; });
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
