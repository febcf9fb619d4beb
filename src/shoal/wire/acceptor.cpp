#include "shoal/wire/acceptor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::wire {
namespace {

constexpr std::size_t kMaxCallers = 256;  ///< without proof, and as many with it
constexpr auto kHandshakeLimit = std::chrono::seconds(10);
/// Callers that are accepted before those are served that have said something meanwhile.
constexpr int kMostAtOnce = 64;

// A few dozen bytes always fit the buffer of a fresh socket, so a partial write is a failure.
bool send_all(int fd, const std::vector<std::byte>& bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

/// Tells whether accept4 has failed because no caller waits, or only with this caller.
bool is_over_for_now(int error) {
  return error == EAGAIN || error == EINTR || error == ECONNABORTED || error == EPROTO;
}

/// Returns the address by which a caller counts: whoever has one address of an IPv6 network of 64
/// bits has all of them.
std::string counted_address(const sockaddr_storage& from) {
  char text[INET6_ADDRSTRLEN] = "";
  if (from.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(from);
    inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
    return text;
  }
  in6_addr six = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    inet_ntop(AF_INET, six.s6_addr + 12, text, sizeof text);
    return text;
  }
  if (IN6_IS_ADDR_LOOPBACK(&six)) return "::1";
  std::memset(six.s6_addr + 8, 0, 8);
  inet_ntop(AF_INET6, &six, text, sizeof text);
  return std::string(text) + "/64";
}

}  // namespace

Acceptor::Acceptor(EventLoop& loop, Descriptor listener, Options options)
    : loop_(loop),
      listener_(std::move(listener)),
      guard_(listener_.get()),
      options_(std::move(options)) {
  watch_listener();
}

void Acceptor::watch_listener() {
  full_ = false;
  loop_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept_all(); });
}

Acceptor::~Acceptor() {
  loop_.remove(listener_.get());
  for (const auto& [fd, caller] : callers_) loop_.remove(fd);
}

void Acceptor::pause() {
  full_ = true;
  loop_.remove(listener_.get());
}

// All ranks of a large job may connect at once, and so may strangers, whom nothing keeps from
// coming again. The kernel's queue is emptied however many there are: what waits there holds up
// callers that know the key. Members that have proved themselves are never pushed out; where there
// are too many, the listener is not watched until drop_expired finds room.
void Acceptor::accept_all() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    if (proven() >= kMaxCallers) return pause();
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    Descriptor socket(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      // Without a descriptor or memory for it the caller stays in the queue, and the listener stays
      // ready: it is not watched until drop_expired tries again.
      const int error = errno;
      const bool over = is_over_for_now(error);
      refused_ = over ? 0 : error;
      if (!over) pause();
      return;
    }
    admit_to_handshake(std::move(socket), counted_address(from));
    if (full_) return;
  }
}

void Acceptor::admit_to_handshake(Descriptor socket, std::string address) {
  const int on = 1;
  const int fd = socket.get();
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ListenerHandshake handshake(options_.key, options_.hello);
  // The listener speaks first: its challenge must be in the caller's proof.
  if (!send_all(fd, handshake.greeting())) return;
  try {
    loop_.watch(fd, EPOLLIN, [this, fd](std::uint32_t) { continue_handshake(fd); });
  } catch (const Error&) {
    return pause();
  }
  ++unproven_callers_;
  ++unproven_[address];
  callers_.emplace(fd, Caller{std::move(address), std::move(socket), std::move(handshake),
                              Deadline::in(kHandshakeLimit), nullptr});
  if (unproven_callers_ > kMaxCallers) make_room();
}

// Whoever holds the most places loses the one that it has had for longest: a member answers within
// a round trip, so the oldest is the likeliest stranger. Among addresses that hold as many it is
// the oldest of all, so that who has many addresses cannot choose whom it pushes out.
void Acceptor::make_room() {
  std::size_t most = 0;
  for (const auto& [address, callers] : unproven_) most = std::max(most, callers);
  auto oldest = callers_.end();
  for (auto it = callers_.begin(); it != callers_.end(); ++it) {
    const Caller& caller = it->second;
    if (caller.channel || unproven_.at(caller.address) != most) continue;
    if (oldest == callers_.end() || caller.deadline.at() < oldest->second.deadline.at())
      oldest = it;
  }
  refuse(oldest->first);
}

// Reads no byte beyond the handshake: what follows belongs to the new owner of the socket.
void Acceptor::continue_handshake(int fd) {
  Caller& caller = callers_.at(fd);
  std::array<std::byte, 256> bytes;
  const ssize_t n = recv(fd, bytes.data(), std::min(bytes.size(), caller.handshake.wanted()), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return drop(fd);
  if (!caller.handshake.feed(std::span(bytes).first(static_cast<std::size_t>(n))))
    return refuse(fd);
  if (!caller.handshake.done()) return;
  if (!send_all(fd, caller.handshake.proof())) return drop(fd);
  begin_channel(fd);
}

// Strangers do not come this far: what TLS costs is spent on callers that know the key.
void Acceptor::begin_channel(int fd) {
  Caller& caller = callers_.at(fd);
  // The socket is closed if no channel comes of it, and its number may be another thread's at once.
  loop_.remove(fd);
  try {
    caller.channel = options_.make_channel
                         ? options_.make_channel(std::move(caller.socket), caller.handshake.hello())
                         : std::make_unique<PlainChannel>(std::move(caller.socket));
  } catch (const Error&) {  // the caller has gone, say
  }
  if (!caller.channel) return drop(fd);
  forget_unproven(caller.address);
  continue_channel(fd);
}

void Acceptor::continue_channel(int fd) {
  Channel& channel = *callers_.at(fd).channel;
  try {
    const Channel::Handshake state = channel.handshake();
    if (state != Channel::Handshake::kDone) {
      const bool reads = state == Channel::Handshake::kWaitsToRead;
      return loop_.watch(fd, reads ? EPOLLIN : EPOLLOUT,
                         [this, fd](std::uint32_t) { continue_channel(fd); });
    }
  } catch (const Error&) {
    return drop(fd);
  }
  // The caller is removed before `admit` runs, which may close the socket: the next connection may
  // get the same number.
  loop_.remove(fd);
  auto node = callers_.extract(fd);
  options_.admit(std::move(node.mapped().channel), node.mapped().handshake.hello());
}

void Acceptor::forget_unproven(const std::string& address) {
  --unproven_callers_;
  const auto of_address = unproven_.find(address);
  if (--of_address->second == 0) unproven_.erase(of_address);
}

void Acceptor::refuse(int fd) {
  refusals_.add(callers_.at(fd).address);
  drop(fd);
}

void Acceptor::drop(int fd) {
  loop_.remove(fd);
  const auto caller = callers_.extract(fd);
  if (!caller.mapped().channel) forget_unproven(caller.mapped().address);
}

void Acceptor::drop_expired() {
  const auto now = Clock::now();
  for (auto it = callers_.begin(); it != callers_.end();) {
    // `drop` erases the entry, so the iterator moves on first.
    const auto& [fd, caller] = *it++;
    if (caller.deadline.at() > now) continue;
    if (caller.channel) {
      drop(fd);
    } else {
      refuse(fd);
    }
  }
  refusals_.report(now);
  if (full_ && proven() < kMaxCallers) watch_listener();
}

}  // namespace shoal::wire
