#include "shoal/wire/door.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

namespace shoal::wire {
namespace {
constexpr std::size_t kMostCallers = 256;
constexpr auto kPatience = std::chrono::seconds(10), kWhenFull = std::chrono::seconds(3);

// A few dozen bytes always fit the buffer of a fresh socket.
bool say(int fd, const std::vector<std::byte>& bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}
}  // namespace

Door::Door(EventLoop& loop, Descriptor listener, std::string key,
           std::function<void(Descriptor, const Hello&)> admit)
    : loop_(loop), listener_(std::move(listener)), key_(std::move(key)), admit_(std::move(admit)) {
  open();
}

void Door::open() {
  full_ = false;
  loop_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept_all(); });
}

Door::~Door() {
  loop_.forget(listener_.get());
  for (const auto& [fd, caller] : callers_) loop_.forget(fd);
}

// Who finds it full waits outside, where the kernel keeps him: all ranks of a large job may come at
// once.
void Door::accept_all() {
  for (;;) {
    if (callers_.size() >= kMostCallers) drop_older_than(kWhenFull);
    if (callers_.size() >= kMostCallers) {
      full_ = true;
      return loop_.forget(listener_.get());
    }
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) return;
    const int on = 1;
    const int fd = socket.get();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Caller caller{std::move(socket), ListenerHandshake(key_), Deadline::in(kPatience)};
    if (!say(fd, caller.handshake.greeting())) continue;
    callers_.emplace(fd, std::move(caller));
    loop_.watch(fd, EPOLLIN, [this, fd](std::uint32_t) { hear(fd); });
  }
}

void Door::hear(int fd) {
  Caller& caller = callers_.at(fd);
  std::array<std::byte, 256> bytes;
  const ssize_t n = recv(fd, bytes.data(), std::min(bytes.size(), caller.handshake.wanted()), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0 || !caller.handshake.feed(std::span(bytes).first(static_cast<std::size_t>(n))))
    return drop(fd);
  if (!caller.handshake.done()) return;
  if (!say(fd, caller.handshake.proof())) return drop(fd);
  loop_.forget(fd);
  auto node = callers_.extract(fd);
  admit_(std::move(node.mapped().socket), node.mapped().handshake.hello());
}

void Door::drop(int fd) {
  loop_.forget(fd);
  callers_.erase(fd);
}

void Door::drop_older_than(Duration age) {
  const auto latest = Clock::now() + kPatience - age;
  for (auto it = callers_.begin(); it != callers_.end();) {
    const auto current = it++;
    if (current->second.deadline.at() < latest) drop(current->first);
  }
}

void Door::tidy() {
  drop_older_than(full_ ? Duration(kWhenFull) : Duration(kPatience));
  if (full_ && callers_.size() < kMostCallers) open();
}

}  // namespace shoal::wire
