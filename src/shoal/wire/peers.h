#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/door.h"
#include "shoal/wire/link.h"
#include "shoal/wire/store.h"

namespace shoal::wire {

/// Connections of one rank to all others, and what has arrived on them. A thread moves the bytes and sends heartbeats, so that a rank that computes
/// for long is not taken for dead. The first failure, here or on another rank, ends everything: every call of `check` throws it from then on. All
/// functions may be called by any thread.
class Peers {
 public:
  struct Settings {
    std::string name = "world";  ///< of this set of connections in the store
    std::string key;             ///< of the job; the handshake proves that both sides have it
    std::string host;            ///< to listen on: an address, see interface_address; empty: the one that leads to the store
    PortRange ports;
    Duration heartbeat = std::chrono::seconds(1);
    Duration silence = std::chrono::seconds(15);  ///< after which a peer that sends nothing is lost: stopped, or the link is cut
  };
  /// Meets the others through the store. Throws Error(timeout) that names the ranks that did not come.
  Peers(const Settings& settings, StoreClient& store, int rank, int size, Deadline deadline);
  /// Says goodbye and waits up to a second for what was sent to be written.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// `stream.group` 0 is taken.
  void send(int peer, Stream stream, int priority, Bytes message);
  /// The next message of a stream, if it has arrived.
  std::optional<Bytes> take(int peer, Stream stream);
  /// `peer` has said goodbye and closed its end.
  bool gone(int peer) const;
  /// Throws the first cause once there is one.
  void check() const;
  /// Fails on all ranks with `cause`, unless something has failed before.
  void abort(const Error& cause);
  /// Counts what happens: messages, failures. To be read before looking for something, and given to `wait_for_event` when it was not there.
  std::uint64_t events() const;
  void wait_for_event(std::uint64_t seen, Duration limit);
  std::uint64_t bytes_sent(int peer) const;  ///< headers and heartbeats included
  std::uint64_t bytes_received(int peer) const;

 private:
  struct Peer {
    std::unique_ptr<Link> link;
    std::map<Stream, std::deque<Bytes>> inbox;
    std::uint32_t watched = 0;  // what the loop looks out for
    Clock::time_point heard;
    bool goodbye = false, gone = false;
  };
  void admit(Descriptor socket, const Hello& hello);
  void add(int rank, Descriptor socket);
  void run();
  void serve(int peer);
  void take_in(int peer, Stream stream, Bytes message);
  void beat();
  void look_out();
  void fail(const Error& cause, bool tell);
  void close(int peer);
  bool push(Peer& peer);  ///< what waits goes to the kernel as far as it fits; true when nothing is left
  void tell_all(std::uint64_t what, const Bytes& message);

  const Settings settings_;
  const int rank_, size_;
  mutable std::mutex mutex_;  // guards all below but the loop and the door, which belong to the thread
  std::condition_variable changed_;
  std::uint64_t events_ = 0;
  std::vector<Peer> peers_;
  std::optional<Error> failure_;
  Clock::time_point next_beat_;
  std::optional<Clock::time_point> stop_by_;
  EventLoop loop_;
  std::unique_ptr<Door> door_;
  std::thread thread_;
};

/// An error as bytes, and back. What cannot be read becomes an Error(aborted) that says so.
Bytes encode(const Error& error);
Error decode_error(const Bytes& bytes);

}  // namespace shoal::wire
