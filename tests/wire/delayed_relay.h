#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <thread>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/address.h"

namespace shoal::wire {

/// Passes bytes between its callers and an endpoint, each `delay` after it came: a link whose round
/// trip is twice that long. A connection to the relay itself takes no time, as its kernel answers.
class DelayedRelay {
 public:
  DelayedRelay(Endpoint to, Duration delay)
      : to_(std::move(to)), delay_(delay), listener_(listen_on("127.0.0.1", {0, 0})) {
    thread_ = std::thread([this] { run(); });
  }
  ~DelayedRelay() {
    over_ = true;
    thread_.join();
  }
  DelayedRelay(const DelayedRelay&) = delete;
  DelayedRelay& operator=(const DelayedRelay&) = delete;

  /// The endpoint to connect to.
  Endpoint endpoint() const { return local_endpoint(listener_.get()); }

 private:
  struct Waiting {
    Clock::time_point due;
    std::vector<std::byte> bytes;
  };
  struct Direction {
    int from;
    int to;
    std::deque<Waiting> waiting;
    bool ended = false;
  };
  struct Connection {
    Descriptor caller;
    Descriptor other;
    Direction there;
    Direction back;
  };

  void run() {
    std::list<Connection> connections;
    while (!over_) {
      pollfd wait{listener_.get(), POLLIN, 0};
      poll(&wait, 1, 1);
      Descriptor caller(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (caller.get() >= 0) {
        Descriptor other = connect_to(to_, Deadline::in(std::chrono::seconds(60)));
        const int near = caller.get();
        const int far = other.get();
        connections.push_back(
            {std::move(caller), std::move(other), {near, far, {}, false}, {far, near, {}, false}});
      }
      for (Connection& connection : connections) {
        carry(connection.there);
        carry(connection.back);
      }
      connections.remove_if([](const Connection& c) { return c.there.ended && c.back.ended; });
    }
  }

  void carry(Direction& direction) {
    std::array<std::byte, 16384> buffer;
    const ssize_t n = direction.ended ? -1 : recv(direction.from, buffer.data(), buffer.size(), 0);
    if (n > 0)
      direction.waiting.push_back({Clock::now() + delay_, {buffer.data(), buffer.data() + n}});
    if (n == 0) direction.ended = true;
    while (!direction.waiting.empty() && Clock::now() >= direction.waiting.front().due) {
      const auto& bytes = direction.waiting.front().bytes;
      // A test passes little at a time, which always fits the buffer.
      send(direction.to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      direction.waiting.pop_front();
    }
    if (direction.ended && direction.waiting.empty()) shutdown(direction.to, SHUT_WR);
  }

  const Endpoint to_;
  const Duration delay_;
  const Descriptor listener_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace shoal::wire
