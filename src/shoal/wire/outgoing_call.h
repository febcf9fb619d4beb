#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "shoal/base/clock.h"
#include "shoal/wire/address.h"
#include "shoal/wire/channel.h"
#include "shoal/wire/handshake.h"

namespace shoal::wire {

/// One attempt to connect to a process that listens with an Acceptor: it connects, completes the
/// handshake on the job's key, and then that of the channel. It never waits, so that one thread
/// makes many calls at a time. Not thread-safe.
class OutgoingCall {
 public:
  struct Options {
    std::string key;
    /// Returns what is said to the listener, once the socket is connected. Empty: the call only
    /// asks whether anybody listens, and is over once it is connected.
    std::function<Hello(int socket)> hello;
    /// Makes the channel, from the socket and what the listener has said. May throw.
    std::function<std::unique_ptr<Channel>(Descriptor, const Hello&)> make_channel;
  };
  /// Begins. `to` is numeric. Throws as begin_connect.
  OutgoingCall(const Endpoint& to, Options options);

  /// Returns the socket, and the events that it waits for (as in epoll).
  int fd() const;
  std::uint32_t events() const { return events_; }
  /// Returns true after 2 seconds without a connection, and after 10 seconds in all: the call is
  /// then to be given up.
  bool expired(Clock::time_point now) const;
  /// Goes on as far as it can without waiting. Returns true once the channel is there, or the call
  /// is over. Throws Error(peer_lost) where the other side is not there (ConnectionRefused where
  /// nobody listens), refuses, or does not know the key.
  bool advance();
  /// Returns the channel, whose handshakes are complete, and what the listener has said.
  std::unique_ptr<Channel> take_channel() { return std::move(channel_); }
  Hello answer() const { return handshake_->hello(); }

 private:
  bool exchange_proofs();

  Endpoint to_;
  Options options_;
  Descriptor socket_;
  Clock::time_point begun_ = Clock::now();
  std::uint32_t events_;
  std::optional<CallerHandshake> handshake_;  ///< once connected
  bool answered_ = false;
  std::unique_ptr<Channel> channel_;  ///< has the socket, once both have proved themselves
};

}  // namespace shoal::wire
