// A rank connects lost rails again. Its thread makes the calls, all of them at a time: one to a
// peer that does not answer holds up no other. A lower rank, which is called and does not call,
// asks in the same way whether a higher one is still there when all connections to it are gone.
#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "shoal/wire/tcp_transport.h"

namespace shoal::wire {
namespace {

constexpr Duration kBetweenCalls = std::chrono::milliseconds(50);
/// Calls to one peer at a time: it may have places for few callers of an address.
constexpr int kMostCallsToAPeer = 8;

}  // namespace

// Called with the lock held, by any thread.
void TcpTransport::connect_again(int r, int rail) {
  if (!wants_rails(peers_[r])) return;
  lost_rails_.emplace_back(r, rail);
  loop_.wake();
}

// Called with the lock held, by the thread.
void TcpTransport::take_lost_rails() {
  for (const auto& rail : lost_rails_) redials_.try_emplace(rail);
  lost_rails_.clear();
}

bool TcpTransport::waits_for_call(int r, int rail) const {
  const Peer& peer = peers_[r];
  if (!wants_rails(peer)) return false;
  if (rail > 0) return peer.link->account(rail).state() == RailAccount::State::kClosed;
  if (!replaces_first_rail(peer)) return false;
  if (rank_ > r) return !peer.link->has_rail(0);
  return peer.listener && !(peer.listener_answers && peer.link->has_any_rail());
}

std::uint16_t TcpTransport::number_of_call(const Peer& peer, int rail) const {
  if (rail > 0) return peer.link->account(rail).awaited();
  return peer.link->first_account()->next_connection();
}

// Runs in the thread, without the lock. Returns how long it may take until the next call is due.
Duration TcpTransport::redial() {
  const auto now = Clock::now();
  Duration next = kMaxWait;
  int peer = -1;
  int calls = 0;
  for (auto it = redials_.begin(); it != redials_.end();) {
    const auto [r, rail] = it->first;
    Redial& redial = it->second;
    if (peer != r) calls = 0;
    peer = r;
    bool waits = false;
    {
      const std::lock_guard lock(mutex_);
      waits = waits_for_call(r, rail);
    }
    const bool expired = redial.call && redial.call->expired(now);
    if (expired && redial.asks) note_answer(r, false);
    if (!waits || expired) hang_up(redial);
    if (!waits) {
      it = redials_.erase(it);
      continue;
    }
    if (!redial.call && now >= redial.not_before && calls < kMostCallsToAPeer)
      begin_redial(r, rail, redial);
    if (redial.call) ++calls;
    if (!redial.call && now < redial.not_before)
      next = std::min<Duration>(next, redial.not_before - now);
    ++it;
  }
  return next;
}

void TcpTransport::hang_up(Redial& redial) {
  if (!redial.call) return;
  loop_.remove(redial.socket);
  redial.call.reset();
  redial.not_before = Clock::now() + kBetweenCalls;
}

// Whoever waits for the peer hears of a call that fails where no rail is left for long.
void TcpTransport::begin_redial(int r, int rail, Redial& redial) {
  PeerHello hello = own_hello();
  hello.rail = static_cast<std::uint8_t>(rail);
  Endpoint address;
  {
    const std::lock_guard lock(mutex_);
    if (!waits_for_call(r, rail)) return;
    const Peer& peer = peers_[r];
    redial.number = number_of_call(peer, rail);
    hello.attempt = static_cast<std::uint8_t>(redial.number);
    hello.rails = static_cast<std::uint16_t>(peer.link->rails());
    hello.connection = peer.connection;
    redial.asks = rank_ < r;
    address = redial.asks ? *peer.listener : *peer.address;
  }
  redial.not_before = Clock::now() + kBetweenCalls;
  const auto say_hello = [this, hello](int socket) {
    PeerHello said = hello;
    said.encrypted = wants_tls(options_.tls, socket) ? 1 : 0;
    return said.encode();
  };
  const auto make_channel = [this, r, hello](Descriptor socket, const Hello& bytes) {
    // It is closed where no channel comes of it, and its number may be another thread's at once.
    loop_.remove(socket.get());
    const PeerHello answer = PeerHello::decode(bytes);
    check_answer(r, hello, answer);
    const auto tls = context_of_call(socket.get());
    return channel_over(std::move(socket), tls, TlsChannel::Role::kCaller, answer.id);
  };
  OutgoingCall::Options options{.key = options_.key, .hello = {}, .make_channel = make_channel};
  if (!redial.asks) options.hello = say_hello;
  try {
    redial.call = std::make_unique<OutgoingCall>(address, std::move(options));
    redial.socket = redial.call->fd();
    watch_redial(r, rail, redial);
  } catch (const ConnectionRefused&) {
    hang_up(redial);
    note_refusal(r);
  } catch (const std::exception&) {
    hang_up(redial);
    if (redial.asks) note_answer(r, false);
  }
}

void TcpTransport::watch_redial(int r, int rail, const Redial& redial) {
  loop_.watch(redial.socket, redial.call->events(),
              [this, r, rail](std::uint32_t) { advance_redial(r, rail); });
}

void TcpTransport::advance_redial(int r, int rail) {
  Redial& redial = redials_.at({r, rail});
  std::unique_ptr<Channel> channel;
  try {
    const bool complete = redial.call->advance();
    if (!complete) return watch_redial(r, rail, redial);
    if (redial.asks) note_answer(r, true);
    if (!redial.asks) channel = redial.call->take_channel();
  } catch (const ConnectionRefused&) {
    note_refusal(r);
  } catch (const std::exception&) {
    if (redial.asks) note_answer(r, false);
  }
  hang_up(redial);
  if (!channel) return;
  const std::lock_guard lock(mutex_);
  // It may have been taken and lost on the other side meanwhile.
  if (!waits_for_call(r, rail) || redial.number != number_of_call(peers_[r], rail)) return;
  try {
    if (rail == 0) {
      add_first_rail(r, static_cast<std::uint8_t>(redial.number), std::move(channel));
    } else {
      add_rail(r, rail, std::move(channel));
      flush_peer(r);
    }
  } catch (const Error&) {  // it has closed the connection already
  }
}

}  // namespace shoal::wire
