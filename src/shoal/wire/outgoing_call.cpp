#include "shoal/wire/outgoing_call.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::wire {

namespace {

constexpr Duration kLongestConnecting = std::chrono::seconds(2);
constexpr Duration kLongestCall = std::chrono::seconds(10);

}  // namespace

OutgoingCall::OutgoingCall(const Endpoint& to, Options options)
    : to_(to), options_(std::move(options)), socket_(begin_connect(to)), events_(EPOLLOUT) {}

int OutgoingCall::fd() const { return channel_ ? channel_->fd() : socket_.get(); }

bool OutgoingCall::expired(Clock::time_point now) const {
  return now - begun_ > (handshake_ ? kLongestCall : kLongestConnecting);
}

bool OutgoingCall::advance() {
  if (!handshake_) {
    check_connected(socket_.get(), to_);
    if (!options_.hello) return true;
    handshake_.emplace(options_.key, options_.hello(socket_.get()));
    events_ = EPOLLIN;
  }
  if (!channel_) {
    if (!exchange_proofs()) return false;
    channel_ = options_.make_channel(std::move(socket_), handshake_->hello());
  }
  const Channel::Handshake state = channel_->handshake();
  events_ = state == Channel::Handshake::kWaitsToWrite ? EPOLLOUT : EPOLLIN;
  return state == Channel::Handshake::kDone;
}

// Reads no byte beyond the listener's proof: what follows belongs to the channel.
bool OutgoingCall::exchange_proofs() {
  while (!handshake_->done()) {
    std::array<std::byte, 256> bytes;
    const std::size_t wanted = std::min(bytes.size(), handshake_->wanted());
    const ssize_t n = recv(socket_.get(), bytes.data(), wanted, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
      throw Error(ErrorKind::kPeerLost, "handshake", to_.text() + " has closed the connection")
          .hint("do both sides have the same key?");
    }
    handshake_->feed(std::span(bytes).first(static_cast<std::size_t>(n)));
    const std::vector<std::byte> answer = handshake_->answer();
    if (answered_ || answer.empty()) continue;
    // A few dozen bytes always fit the buffer of a fresh socket.
    if (::send(socket_.get(), answer.data(), answer.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(answer.size()))
      throw Error(ErrorKind::kPeerLost, "handshake", to_.text() + " takes no answer");
    answered_ = true;
  }
  return true;
}

}  // namespace shoal::wire
