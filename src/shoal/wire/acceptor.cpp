#include "shoal/wire/acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::wire {
namespace {

constexpr std::size_t kMaxCallers = 256;
constexpr auto kHandshakeLimit = std::chrono::seconds(10);
constexpr auto kHandshakeLimitWhenFull = std::chrono::seconds(3);

// A few dozen bytes always fit the buffer of a fresh socket, so a partial write is a failure.
bool send_all(int fd, const std::vector<std::byte>& bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

/// Tells whether accept4 has failed because no caller waits, or only with this caller.
bool is_over_for_now(int error) {
  return error == EAGAIN || error == EINTR || error == ECONNABORTED || error == EPROTO;
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

// All ranks of a large job may connect at once. When too many are in their handshake the rest stay
// in the kernel's queue, and the listener is not watched until drop_expired has made room.
void Acceptor::accept_all() {
  for (;;) {
    if (callers_.size() >= kMaxCallers) drop_older_than(kHandshakeLimitWhenFull);
    if (callers_.size() >= kMaxCallers) return pause();
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      // Without a descriptor or memory for it the caller stays in the queue, and the listener stays
      // ready: it is not watched until drop_expired tries again.
      const int error = errno;
      const bool over = is_over_for_now(error);
      refused_ = over ? 0 : error;
      if (!over) pause();
      return;
    }
    const int on = 1;
    const int fd = socket.get();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Caller caller{std::move(socket), ListenerHandshake(options_.key, options_.hello),
                  Deadline::in(kHandshakeLimit), nullptr};
    // The listener speaks first: its challenge must be in the caller's proof.
    if (!send_all(fd, caller.handshake.greeting())) continue;
    callers_.emplace(fd, std::move(caller));
    try {
      loop_.watch(fd, EPOLLIN, [this, fd](std::uint32_t) { continue_handshake(fd); });
    } catch (const Error&) {
      callers_.erase(fd);
      return pause();
    }
  }
}

// Reads no byte beyond the handshake: what follows belongs to the new owner of the socket.
void Acceptor::continue_handshake(int fd) {
  Caller& caller = callers_.at(fd);
  std::array<std::byte, 256> bytes;
  const ssize_t n = recv(fd, bytes.data(), std::min(bytes.size(), caller.handshake.wanted()), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0 || !caller.handshake.feed(std::span(bytes).first(static_cast<std::size_t>(n))))
    return drop(fd);
  if (!caller.handshake.done()) return;
  if (!send_all(fd, caller.handshake.proof())) return drop(fd);
  begin_channel(fd);
}

// Strangers do not come this far: what TLS costs is spent on callers that know the key.
void Acceptor::begin_channel(int fd) {
  Caller& caller = callers_.at(fd);
  caller.channel = options_.make_channel
                       ? options_.make_channel(std::move(caller.socket), caller.handshake.hello())
                       : std::make_unique<PlainChannel>(std::move(caller.socket));
  if (!caller.channel) return drop(fd);
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

void Acceptor::drop(int fd) {
  loop_.remove(fd);
  callers_.erase(fd);
}

void Acceptor::drop_older_than(Duration age) {
  // A caller that came at time t has the deadline t + kHandshakeLimit, so `latest` is the deadline
  // of one that came `age` ago.
  const auto latest = Clock::now() + kHandshakeLimit - age;
  for (auto it = callers_.begin(); it != callers_.end();) {
    // `drop` erases the entry, so the iterator moves on first.
    const auto current = it++;
    if (current->second.deadline.at() < latest) drop(current->first);
  }
}

void Acceptor::drop_expired() {
  drop_older_than(full_ ? Duration(kHandshakeLimitWhenFull) : Duration(kHandshakeLimit));
  if (full_ && callers_.size() < kMaxCallers) watch_listener();
}

}  // namespace shoal::wire
