#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/address.h"
#include "shoal/wire/door.h"
#include "shoal/wire/error_bytes.h"
#include "shoal/wire/key_values.h"
#include "shoal/wire/link.h"
#include "shoal/wire/transport.h"

namespace shoal::wire {

/// One connection of one rank to each other, over TCP, and what has arrived on them.
///
/// Whoever waits moves the bytes of all connections itself; while nobody has waited for a moment, a
/// thread does. The thread also sends heartbeats, so that a rank that computes for long is not
/// taken for dead, and keeps the door.
class Peers final : public Transport {
 public:
  struct Settings {
    std::string name = "world";  ///< of this set of connections in the store
    std::string key;             ///< of the job; the handshake proves that both sides have it
    std::string host;  ///< to listen on: an address, see interface_address; empty: that which the
                       ///< store knows
    PortRange ports;
    Duration heartbeat = std::chrono::seconds(1);
    Duration silence = std::chrono::seconds(
        15);  ///< after which a peer that sends nothing is lost: stopped, or the link is cut
  };
  /// Meets the others through the store. Throws Error(timeout) that names the ranks that did not
  /// come.
  Peers(const Settings& settings, KeyValues& store, int rank, int size, Deadline deadline);
  /// Says goodbye, unless that was done, and waits up to a second for what was sent to be written.
  ~Peers() override;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Says goodbye: this rank waits for nobody any more, and its end is no failure.
  void leave();

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(int peer, Stream stream, int priority, Bytes message) {
    send(peer, stream, priority, std::move(message), {}, nullptr);
  }
  void send(int peer, Stream stream, int priority, Bytes head, std::span<const std::byte> body,
            Released released) override;
  void flush() override;  ///< hands what is queued to the kernel
  std::optional<Piece> take(int peer, Stream stream) override;
  bool has_arrived(int peer, Stream stream) const override;
  void land(int peer, Stream stream, std::shared_ptr<Landing> landing) override;
  void let_go(Stream stream) override;
  bool gone(int peer) const override;
  void check() const override;
  void abort(const Error& cause) override;
  std::uint64_t events() const override { return events_.load(std::memory_order_acquire); }
  void wait_for_event(std::uint64_t seen, Duration limit) override;
  void answer_for(std::uint64_t group, std::function<Bytes()> say) override;
  std::vector<std::optional<Bytes>> ask(std::uint64_t group, Duration patience) override;
  std::uint64_t bytes_sent(int peer) const override;
  std::uint64_t bytes_received(int peer) const;

 private:
  class Arrivals;
  struct Peer {
    std::unique_ptr<Link> link;
    std::map<Stream, std::list<Piece>> inbox;
    std::map<Stream, std::shared_ptr<Landing>> landings;
    std::uint32_t watched = 0;  // what epoll looks out for
    bool unflushed = false;
    Clock::time_point heard;
    bool goodbye = false, gone = false;
    std::optional<Bytes> said;  // to the question that is open
  };
  void admit(Descriptor socket, const Hello& hello);
  void add(int rank, Descriptor socket);
  void await_all(Deadline deadline);
  void run();
  void attend(bool attentive);
  void move_bytes(std::unique_lock<std::mutex>& lock, Duration limit);
  void serve(int peer, std::uint32_t events);
  void take_in(int peer, Stream stream, Piece piece, std::size_t bytes);
  void control(int peer, std::uint64_t what, const Piece& piece);
  void answer(int peer, const Piece& question);
  void hear_answer(int peer, const Piece& piece);
  void beat();
  void fail(const Error& cause);
  void close(int peer);
  void push(int peer);
  void tell_all(std::uint64_t what, const Bytes& message);
  void happened();
  void nudge();

  const Settings settings_;
  const int rank_, size_;
  const std::shared_ptr<ChunkPool> pool_;
  mutable std::mutex mutex_;  // guards all below but the loop and the door, which belong to the
                              // thread, and atomics
  std::condition_variable changed_;
  std::atomic<std::uint64_t> events_{0};
  std::vector<Peer> peers_;
  std::map<std::uint64_t, std::function<Bytes()>> answers_;
  std::optional<std::uint64_t> asked_;  // about which group, while a question is open
  std::optional<Error> failure_;
  std::atomic<bool> failed_{false};
  Clock::time_point next_beat_;
  bool left_ = false;
  std::optional<Clock::time_point> stop_by_;
  Descriptor ready_, nudge_;  // epoll over all connections and the nudge, which ends its wait
  bool driving_ = false;      // somebody who waits moves the bytes
  int bystanders_ = 0;        // who wait for what the driver does
  Clock::time_point driven_;  // when somebody has last
  int ranks_here_ = 1;
  bool spins_ = true;  // a wait: there is a core for each rank of this host
  EventLoop loop_;
  std::unique_ptr<Door> door_;
  std::thread thread_;
};

}  // namespace shoal::wire
