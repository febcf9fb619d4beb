#include "shoal/wire/peer_links.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/error.h"
#include "shoal/wire/key_derivation.h"

namespace shoal::wire {
namespace {

/// Tells these connections from others of a program that uses the same key.
constexpr std::uint32_t kPurpose = 0x4b4e4c50;
/// The pauses between calls of a peer that does not answer.
constexpr Duration kShortestPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(1);

/// What each side says in its handshake.
struct LinkHello {
  std::uint32_t purpose = kPurpose;
  TlsMode tls = TlsMode::kAuto;
  std::uint8_t encrypted = 0;  ///< 1: TLS follows
  std::uint16_t version = 1;
  std::uint64_t cluster = 0;
  PeerId id;
  std::uint32_t unused = 0;
};

Hello encode(const LinkHello& words) {
  static_assert(offsetof(LinkHello, unused) + sizeof words.unused == sizeof(Hello));
  Hello hello;
  std::memcpy(hello.data(), &words, hello.size());
  return hello;
}

LinkHello decode(const Hello& hello) {
  // The padding at the end of a LinkHello is not sent.
  std::array<std::byte, sizeof(LinkHello)> words = {};
  std::ranges::copy(hello, words.begin());
  return std::bit_cast<LinkHello>(words);
}

std::uint64_t name_of(const std::string& cluster) {
  const auto digest = derive_key(cluster, "shoal cluster", "name");
  std::uint64_t name = 0;
  std::memcpy(&name, digest.data(), sizeof name);
  return name;
}

}  // namespace

PeerLinks::PeerLinks(EventLoop& loop, Descriptor listener, Options options)
    : loop_(loop), options_(std::move(options)), cluster_(name_of(options_.cluster)) {
  SHOAL_USER_CHECK(!options_.key.empty(), "links", "the key is empty");
  SHOAL_USER_CHECK(options_.context || options_.tls != TlsMode::kOn, "links",
                   "TLS is wanted and there is no context for it");
  LinkHello words{.tls = options_.tls, .cluster = cluster_, .id = options_.self};
  acceptor_ = std::make_unique<Acceptor>(
      loop_, std::move(listener),
      Acceptor::Options{.key = options_.key,
                        .hello = encode(words),
                        .make_channel =
                            [this](Descriptor socket, const Hello& hello) {
                              return channel_of_caller(std::move(socket), hello);
                            },
                        .admit = [this](std::unique_ptr<Channel> channel,
                                        const Hello& hello) { add(std::move(channel), hello); }});
}

PeerLinks::~PeerLinks() {
  acceptor_.reset();
  for (const auto& [fd, call] : calls_) loop_.remove(fd);
  for (auto& [fd, connection] : connections_) {
    loop_.remove(fd);
    connection.link->finish_sending();
  }
}

Hello PeerLinks::own_hello(int socket) const {
  LinkHello words{.tls = options_.tls, .cluster = cluster_, .id = options_.self};
  words.encrypted = wants_tls(options_.tls, socket) ? 1 : 0;
  if (words.encrypted == 1 && !options_.context) {
    throw Error(ErrorKind::kResource, "links", "this connection needs TLS, which is not available")
        .hint("install an OpenSSL with TLS 1.3, or turn TLS off in all processes");
  }
  return encode(words);
}

bool PeerLinks::is_of_another(const Hello& hello) const {
  const LinkHello words = decode(hello);
  return words.purpose == kPurpose && words.version == 1 && words.cluster == cluster_ &&
         words.tls == options_.tls && words.id != options_.self;
}

// The answer is proved by the key; with TLS the certificate must be that of the id.
std::unique_ptr<Channel> PeerLinks::channel_to(Descriptor socket, const Hello& answer,
                                               const PeerId* meant) {
  const LinkHello words = decode(answer);
  const bool fits = is_of_another(answer);
  if (!fits || (meant && words.id != *meant)) {
    throw Error(ErrorKind::kPeerLost, "links",
                fits ? "another process answers there" : "it is not of this cluster");
  }
  const bool encrypted = wants_tls(options_.tls, socket.get());
  return channel_over(std::move(socket), encrypted ? options_.context : nullptr,
                      TlsChannel::Role::kCaller, words.id);
}

// The caller decides whether TLS follows, but never does without it where this side does not: it
// may see that the connection leaves the host where this side, behind an address translator, does
// not.
std::unique_ptr<Channel> PeerLinks::channel_of_caller(Descriptor socket, const Hello& hello) {
  const LinkHello words = decode(hello);
  const bool plain = words.encrypted == 0 && !wants_tls(options_.tls, socket.get());
  const bool fits = is_of_another(hello);
  const bool has_room = peers_.size() < kMostPeers || peers_.contains(words.id);
  if (!fits || !has_room || (!plain && (words.encrypted != 1 || !options_.context))) {
    ++counts_.refused;
    return nullptr;
  }
  return channel_over(std::move(socket), plain ? nullptr : options_.context,
                      TlsChannel::Role::kListener, words.id);
}

void PeerLinks::add(std::unique_ptr<Channel> channel, const Hello& hello) {
  const PeerId id = decode(hello).id;
  const int fd = channel->fd();
  const auto limit = static_cast<int>(
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.unacknowledged).count());
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  Peer& peer = peers_[id];
  if (peer.connections.size() >= kMostConnectionsOfPeer) {
    const int oldest = peer.connections.front();
    lose(oldest);
  }
  const bool encrypted = dynamic_cast<TlsChannel*>(channel.get()) != nullptr;
  connections_.emplace(
      fd, Connection{.peer = id,
                     .encrypted = encrypted,
                     .link = std::make_unique<Link>(std::move(channel), kMostMessageBytes)});
  peer.connections.push_back(fd);
  peer.calls.pause = Duration::zero();
  arrivals_.push_back(id);
  if (arrivals_.size() > kMostPeers) arrivals_.erase(arrivals_.begin());
  loop_.watch(fd, EPOLLIN, [this, fd](std::uint32_t events) { serve(fd, events); });
  pump(peer);
  // TLS may have read more than its handshake.
  if (connections_.contains(fd)) serve(fd, EPOLLIN);
}

void PeerLinks::know(const PeerId& peer, std::vector<Endpoint> endpoints) {
  if (peer == options_.self || endpoints.empty()) return;
  if (peers_.size() >= kMostPeers && !peers_.contains(peer)) return;
  Calls& calls = peers_[peer].calls;
  if (calls.endpoints == endpoints) return;
  calls.endpoints = std::move(endpoints);
  calls.next = 0;
  calls.pause = Duration::zero();
}

// The turn goes on where it was: the first contact may never answer.
void PeerLinks::find(std::vector<Endpoint> contacts) {
  if (contacts_.endpoints != contacts) {
    contacts_.endpoints = std::move(contacts);
    contacts_.next = 0;
    contacts_.pause = Duration::zero();
  }
  finding_ = !contacts_.endpoints.empty();
}

std::vector<PeerId> PeerLinks::take_arrivals() { return std::exchange(arrivals_, {}); }

std::set<PeerId> PeerLinks::take_absent() { return std::exchange(absent_, {}); }

void PeerLinks::keep_only(const std::set<PeerId>& kept) {
  for (auto it = peers_.begin(); it != peers_.end();) {
    auto& [id, peer] = *it;
    if (kept.contains(id) || peer.calls.calling) {
      ++it;
      continue;
    }
    peer.calls = Calls{};
    if (!peer.connections.empty()) {
      ++it;
    } else {
      it = peers_.erase(it);
    }
  }
}

void PeerLinks::disconnect(const PeerId& id) {
  const auto entry = peers_.find(id);
  if (entry == peers_.end()) return;
  const std::vector<int> connections = entry->second.connections;
  for (const int fd : connections) lose(fd);
}

void PeerLinks::send(const PeerId& to, std::uint64_t kind, Bytes message) {
  const auto entry = peers_.find(to);
  const bool unknown = entry == peers_.end() ||
                       (entry->second.connections.empty() && entry->second.calls.endpoints.empty());
  if (unknown || message.size() > kMostMessageBytes) {
    ++counts_.dropped;
    return;
  }
  Peer& peer = entry->second;
  peer.queued_bytes += message.size();
  peer.queue.push_back({kind, std::move(message)});
  while (peer.queue.size() > kMostQueued || peer.queued_bytes > kMostQueuedBytes) drop_oldest(peer);
  pump(peer);
  // A connection that broke may have been the only way to this peer.
  const auto left = peers_.find(to);
  if (left != peers_.end() && left->second.connections.empty()) call(to, Clock::now());
}

void PeerLinks::drop_oldest(Peer& peer) {
  peer.queued_bytes -= peer.queue.front().bytes.size();
  peer.queue.pop_front();
  ++counts_.dropped;
}

// A link gets the next message when the kernel has the one before, so that the queue here is the
// only one that grows, and what a broken connection loses is little.
void PeerLinks::pump(Peer& peer) {
  while (!peer.queue.empty() && !peer.connections.empty()) {
    const int fd = peer.connections.back();
    Link& link = *connections_.at(fd).link;
    if (!link.idle()) return;
    Message message = std::move(peer.queue.front());
    peer.queue.pop_front();
    peer.queued_bytes -= message.bytes.size();
    link.send({message.kind, 0}, 0, std::move(message.bytes));
    if (!write(fd)) return;
  }
}

/// Returns true where the kernel has taken everything.
bool PeerLinks::write(int fd) {
  bool all = false;
  try {
    all = connections_.at(fd).link->flush();
  } catch (const Error&) {
    lose(fd);
    return false;
  }
  // A socket with room is always ready to be written: it is watched for that only when it is full.
  loop_.watch(fd, all ? EPOLLIN : EPOLLIN | EPOLLOUT,
              [this, fd](std::uint32_t events) { serve(fd, events); });
  return all;
}

void PeerLinks::serve(int fd, std::uint32_t events) {
  const auto entry = connections_.find(fd);
  if (entry == connections_.end()) return;
  const PeerId from = entry->second.peer;
  if (events & EPOLLOUT) {
    if (write(fd)) pump(peers_[from]);
    if (!connections_.contains(fd)) return;
  }
  if (!(events & ~static_cast<std::uint32_t>(EPOLLOUT))) return;
  // The messages are passed on when the link is read no more: what follows may close it.
  std::vector<Message> messages;
  bool open = false;
  try {
    open = connections_.at(fd).link->receive([&](Stream stream, Bytes bytes) {
      messages.push_back({stream.group, std::move(bytes)});
    });
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kData) ++counts_.refused;
  }
  try {
    for (Message& message : messages)
      options_.received(from, message.kind, std::move(message.bytes));
  } catch (const Error&) {
    ++counts_.refused;
    open = false;
  }
  if (!open && connections_.contains(fd)) lose(fd);
}

void PeerLinks::lose(int fd) {
  const auto node = connections_.extract(fd);
  if (node.empty()) return;
  loop_.remove(fd);
  ++counts_.lost;
  if (const auto entry = peers_.find(node.mapped().peer); entry != peers_.end()) {
    Peer& peer = entry->second;
    std::erase(peer.connections, fd);
    // A caller without an address that is gone cannot be reached any more.
    if (peer.connections.empty() && peer.calls.endpoints.empty() && !peer.calls.calling)
      peers_.erase(entry);
  }
}

PeerLinks::Calls* PeerLinks::calls_of(const std::optional<PeerId>& peer) {
  if (!peer) return &contacts_;
  const auto entry = peers_.find(*peer);
  return entry == peers_.end() ? nullptr : &entry->second.calls;
}

void PeerLinks::call(const std::optional<PeerId>& peer, Clock::time_point now) {
  Calls& calls = *calls_of(peer);
  if (calls.calling || calls.endpoints.empty() || now < calls.not_before) return;
  const Endpoint to = calls.endpoints[calls.next % calls.endpoints.size()];
  ++calls.next;
  // All addresses in turn, and then a pause, which grows.
  if (calls.next % calls.endpoints.size() == 0) {
    calls.pause = std::clamp<Duration>(2 * calls.pause, kShortestPause, kLongestPause);
    calls.not_before = now + calls.pause;
  }
  try {
    Call call{
        .call = std::make_unique<OutgoingCall>(
            to, OutgoingCall::Options{.key = options_.key,
                                      .hello = [this](int socket) { return own_hello(socket); },
                                      .make_channel =
                                          [this, peer](Descriptor socket, const Hello& answer) {
                                            // Closed where no channel comes of it.
                                            loop_.remove(socket.get());
                                            return channel_to(std::move(socket), answer,
                                                              peer ? &*peer : nullptr);
                                          }}),
        .peer = peer};
    const int fd = call.call->fd();
    const std::uint32_t events = call.call->events();
    calls_.emplace(fd, std::move(call));
    calls.calling = true;
    loop_.watch(fd, events, [this, fd](std::uint32_t) { advance_call(fd); });
  } catch (const ConnectionRefused&) {
    note_ending(peer, calls, Ending::kRefused);
  } catch (const Error&) {
    note_ending(peer, calls, Ending::kFailed);
  }
}

void PeerLinks::advance_call(int fd) {
  Call& call = calls_.at(fd);
  try {
    if (!call.call->advance()) {
      return loop_.watch(fd, call.call->events(), [this, fd](std::uint32_t) { advance_call(fd); });
    }
  } catch (const ConnectionRefused&) {
    return end_call(fd, Ending::kRefused);
  } catch (const Error&) {
    return end_call(fd, Ending::kFailed);
  }
  std::unique_ptr<Channel> channel = call.call->take_channel();
  const Hello answer = call.call->answer();
  end_call(fd, Ending::kConnected);
  add(std::move(channel), answer);
}

void PeerLinks::end_call(int fd, Ending ending) {
  const auto node = calls_.extract(fd);
  const std::optional<PeerId>& peer = node.mapped().peer;
  loop_.remove(fd);
  if (!peer && ending == Ending::kConnected) finding_ = false;
  Calls* calls = calls_of(peer);
  if (!calls) return;
  calls->calling = false;
  note_ending(peer, *calls, ending);
}

// One address that refuses may be the wrong one of several.
void PeerLinks::note_ending(const std::optional<PeerId>& peer, Calls& calls, Ending ending) {
  if (ending != Ending::kConnected) ++counts_.calls_failed;
  calls.refusals = ending == Ending::kRefused ? calls.refusals + 1 : 0;
  if (calls.refusals < calls.endpoints.size() || !peer) return;
  calls.refusals = 0;
  if (ending == Ending::kRefused && !is_connected(*peer)) absent_.insert(*peer);
}

void PeerLinks::tick(Clock::time_point now) {
  acceptor_->drop_expired();
  for (auto it = calls_.begin(); it != calls_.end();) {
    const auto& [fd, call] = *it++;
    if (call.call->expired(now)) end_call(fd, Ending::kFailed);
  }
  if (finding_) call(std::nullopt, now);
  for (auto& [id, peer] : peers_)
    if (!peer.queue.empty() && peer.connections.empty()) call(id, now);
}

bool PeerLinks::idle() const {
  const bool sent = std::all_of(connections_.begin(), connections_.end(),
                                [](const auto& entry) { return entry.second.link->idle(); });
  return sent && std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
           return entry.second.queue.empty() || entry.second.connections.empty();
         });
}

bool PeerLinks::is_connected(const PeerId& peer) const {
  const auto entry = peers_.find(peer);
  return entry != peers_.end() && !entry->second.connections.empty();
}

bool PeerLinks::is_encrypted(const PeerId& peer) const {
  const auto entry = peers_.find(peer);
  return entry != peers_.end() && !entry->second.connections.empty() &&
         connections_.at(entry->second.connections.back()).encrypted;
}

}  // namespace shoal::wire
