#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/address.h"

namespace shoal::wire {

/// Somebody on the way: passes bytes between its callers and an endpoint, reads and changes them.
class MeddlingRelay {
 public:
  /// What is done with bytes of a connection (0, 1, ... in the order of calls) that begin at
  /// `offset` of its direction. Returns false to cut the connection, with these bytes unsent.
  using Meddle = std::function<bool(int connection, bool from_caller, std::uint64_t offset,
                                    std::span<std::byte>)>;
  MeddlingRelay(Endpoint to, Meddle meddle)
      : to_(std::move(to)), meddle_(std::move(meddle)), listener_(listen_on("127.0.0.1", {0, 0})) {
    thread_ = std::thread([this] { run(); });
  }
  ~MeddlingRelay() {
    over_ = true;
    thread_.join();
  }
  MeddlingRelay(const MeddlingRelay&) = delete;
  MeddlingRelay& operator=(const MeddlingRelay&) = delete;

  /// The endpoint to connect to.
  Endpoint endpoint() const { return local_endpoint(listener_.get()); }

 private:
  struct Direction {
    Descriptor from;
    std::uint64_t offset = 0;
    std::vector<std::byte> left;  ///< read, and not written yet
    bool ended = false;
  };
  struct Connection {
    Direction there;
    Direction back;
    bool cut = false;
  };

  void run() {
    std::vector<std::unique_ptr<Connection>> connections;
    while (!over_) {
      std::vector<pollfd> waits{{listener_.get(), POLLIN, 0}};
      for (const auto& c : connections) {
        if (c->cut) continue;
        for (const Direction* d : {&c->there, &c->back})
          if (!d->ended && d->left.empty()) waits.push_back({d->from.get(), POLLIN, 0});
      }
      poll(waits.data(), waits.size(), 1);
      Descriptor caller(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (caller.get() >= 0) {
        auto connection = std::make_unique<Connection>();
        connection->there.from = std::move(caller);
        connection->back.from = connect_to(to_, Deadline::in(std::chrono::seconds(60)));
        connections.push_back(std::move(connection));
      }
      for (std::size_t i = 0; i < connections.size(); ++i) {
        Connection& c = *connections[i];
        if (!c.cut) c.cut = !carry(static_cast<int>(i), true, c.there, c.back.from);
        if (!c.cut) c.cut = !carry(static_cast<int>(i), false, c.back, c.there.from);
        if (c.cut) {
          c.there.from = Descriptor();
          c.back.from = Descriptor();
        }
      }
    }
  }

  bool carry(int connection, bool from_caller, Direction& d, const Descriptor& to) {
    if (d.left.empty() && !d.ended) {
      std::array<std::byte, 16384> buffer;
      const ssize_t n = recv(d.from.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      d.ended = n == 0;
      if (n > 0) {
        const auto bytes = std::span(buffer).first(static_cast<std::size_t>(n));
        if (!meddle_(connection, from_caller, d.offset, bytes)) return false;
        d.offset += bytes.size();
        d.left.assign(bytes.begin(), bytes.end());
      }
      if (d.ended) shutdown(to.get(), SHUT_WR);
    }
    if (d.left.empty()) return true;
    const ssize_t n = send(to.get(), d.left.data(), d.left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) d.left.erase(d.left.begin(), d.left.begin() + n);
    return true;
  }

  const Endpoint to_;
  const Meddle meddle_;
  const Descriptor listener_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace shoal::wire
