#include "shoal/wire/channel.h"

#include <sys/socket.h>

#include <cerrno>

#include "shoal/base/system_error.h"

namespace shoal::wire {
namespace {

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

std::optional<std::size_t> PlainChannel::read(std::span<const iovec> to) {
  msghdr message = message_of(to);
  const ssize_t n = recvmsg(fd(), &message, MSG_DONTWAIT);
  if (n >= 0) return static_cast<std::size_t>(n);
  if (errno == EAGAIN || errno == EINTR) return std::nullopt;
  throw system_error(ErrorKind::kPeerLost, "receive", "the connection broke");
}

std::size_t PlainChannel::write(std::span<const iovec> from) {
  const msghdr message = message_of(from);
  for (;;) {
    const ssize_t n = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) throw system_error(ErrorKind::kPeerLost, "send", "the connection broke");
  }
}

bool PlainChannel::finish_sending() {
  ::shutdown(fd(), SHUT_WR);
  return true;
}

}  // namespace shoal::wire
