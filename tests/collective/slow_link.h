#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/wire/address.h"

namespace shoal::collective {

/// A relay between the two ends of a TCP connection, controlled by a test. It passes bytes on in
/// both directions, until `after` bytes have passed since the fault was set, both directions
/// together.
class SlowLink {
 public:
  enum class Fault : std::uint8_t {
    kNone,
    kCut,          ///< closes both connections
    kStop,         ///< takes nothing and hands on nothing, with both connections open
    kStopForward,  ///< the same from the caller to the other end only
  };
  /// Bytes are handed on `delay` after they came, in pieces of 1 to `most` bytes.
  SlowLink(Duration delay, std::size_t most)
      : delay_(delay), most_(most), listener_(wire::listen_on("127.0.0.1", {0, 0})) {}
  ~SlowLink() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  SlowLink(const SlowLink&) = delete;
  SlowLink& operator=(const SlowLink&) = delete;

  /// The endpoint to connect to instead of `to`.
  wire::Endpoint endpoint() const { return wire::local_endpoint(listener_.get()); }
  void lead_to(const wire::Endpoint& to) {
    thread_ = std::thread([this, to] { run(to); });
  }
  /// Hands on at most so many bytes a second to the other end, and holds few that wait, so that the
  /// caller's kernel keeps the rest. To be called before `lead_to`.
  void limit(std::uint64_t bytes_a_second) { rate_ = bytes_a_second; }
  void set(Fault fault, std::uint64_t after) {
    left_ = after;
    fault_ = fault;
  }
  std::uint64_t pieces() const { return pieces_; }

 private:
  struct Waiting {
    Clock::time_point due;
    std::vector<std::byte> bytes;
  };
  struct Direction {
    int from, to;
    bool forward;
    std::deque<Waiting> waiting;
    bool ended = false;
  };

  void run(const wire::Endpoint& to) {
    wire::Descriptor caller;
    while (!over_ && caller.get() < 0) {
      pollfd wait{listener_.get(), POLLIN, 0};
      if (poll(&wait, 1, 10) == 1) {
        caller = wire::Descriptor(
            accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      }
    }
    if (over_) return;
    const wire::Descriptor other = wire::connect_to(to, Deadline::in(std::chrono::seconds(60)));
    Direction there{caller.get(), other.get(), true, {}, false};
    Direction back{other.get(), caller.get(), false, {}, false};
    while (!over_ && !(there.ended && back.ended)) {
      if (faulty() && fault_ == Fault::kCut) return;
      const bool forward = carry(there);
      const bool backward = carry(back);
      if (forward || backward) continue;
      pollfd wait[2] = {{caller.get(), POLLIN, 0}, {other.get(), POLLIN, 0}};
      if (faulty() || there.ended || back.ended || !there.waiting.empty() ||
          !back.waiting.empty()) {
        poll(nullptr, 0, 1);
      } else {
        poll(wait, 2, 10);
      }
    }
  }

  bool faulty() const { return fault_ != Fault::kNone && left_ == 0; }

  /// Receives what has arrived and passes on what is due; true when a byte has moved.
  bool carry(Direction& d) {
    if (faulty() && (fault_ == Fault::kStop || d.forward)) return false;
    bool moved = false;
    std::byte buffer[16 << 10];
    // What waits is bounded, as in a cable: the sender feels it.
    const bool limited = rate_ > 0 && d.forward;
    if (!d.ended && d.waiting.size() < (limited ? 4 : 4096)) {
      const std::size_t piece = 1 + random_() % most_;
      const ssize_t n = recv(d.from, buffer, std::min(piece, sizeof buffer), 0);
      if (n > 0) {
        auto due = Clock::now() + delay_;
        if (limited) {
          const double seconds = static_cast<double>(n) / static_cast<double>(rate_);
          free_at_ = std::max(free_at_, due) + from_seconds(seconds);
          due = free_at_;
        }
        d.waiting.push_back({due, std::vector<std::byte>(buffer, buffer + n)});
        moved = true;
      }
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) d.ended = true;
    }
    while (!d.waiting.empty() && Clock::now() >= d.waiting.front().due) {
      auto& bytes = d.waiting.front().bytes;
      const ssize_t n = send(d.to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) break;
        d.ended = true, d.waiting.clear();
        break;
      }
      moved = true;
      count(static_cast<std::uint64_t>(n));
      bytes.erase(bytes.begin(), bytes.begin() + n);
      if (bytes.empty()) d.waiting.pop_front(), ++pieces_;
      if (faulty()) break;
    }
    if (d.ended && d.waiting.empty()) shutdown(d.to, SHUT_WR);
    return moved;
  }

  void count(std::uint64_t bytes) {
    if (fault_ != Fault::kNone) left_ = left_ - std::min<std::uint64_t>(left_, bytes);
  }

  const Duration delay_;
  const std::size_t most_;
  const wire::Descriptor listener_;
  std::uint64_t rate_ = 0;  ///< bytes a second from the caller to the other end; 0: no limit
  Clock::time_point free_at_{};
  std::mt19937 random_{5};
  std::atomic<bool> over_{false};
  std::atomic<Fault> fault_{Fault::kNone};
  std::atomic<std::uint64_t> left_{0}, pieces_{0};
  std::thread thread_;
};

}  // namespace shoal::collective
