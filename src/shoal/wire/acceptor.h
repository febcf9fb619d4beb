#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "shoal/wire/channel.h"
#include "shoal/wire/closed_in_children.h"
#include "shoal/wire/event_loop.h"
#include "shoal/wire/handshake.h"
#include "shoal/wire/refusals.h"

namespace shoal::wire {

/// Accepts connections and passes on those whose callers prove that they know the job's key, and
/// that complete the handshake of their channel. A caller that is silent, or that does not know the
/// key, does not delay the others. Each caller must complete both handshakes within 10 seconds.
///
/// There are places for 256 callers that have not proved themselves. A further one gets the place
/// of the oldest caller from that address which holds the most, so an address never takes a place
/// from one that has fewer. (Of IPv6, all addresses of a network of 64 bits count as one.) Members
/// whose place is taken call again. Those that have proved themselves keep theirs: beyond 256 of
/// them others wait in the kernel's queue, as they do while this process has no descriptor.
class Acceptor {
 public:
  struct Options {
    std::string key;
    /// What callers are told once they have proved that they know the key.
    Hello hello{};
    /// Makes the channel of a caller that has proved it, from its socket and its hello message.
    /// Null refuses the caller, and so does an Error. Where there is no such function, channels are
    /// plain.
    std::function<std::unique_ptr<Channel>(Descriptor, const Hello&)> make_channel;
    /// Receives the channel, whose handshake is complete, and the caller's hello message.
    std::function<void(std::unique_ptr<Channel>, const Hello&)> admit;
  };
  /// Both functions run in the thread of `loop`, which alone may use the acceptor.
  Acceptor(EventLoop& loop, Descriptor listener, Options options);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  /// Closes connections whose handshake takes too long. The owner calls it at short intervals.
  void drop_expired();
  /// Returns the error (errno) for which callers wait in the kernel's queue, as this process has no
  /// descriptor for them; 0 where none do. Any thread.
  int refused() const { return refused_; }
  /// Counts the callers that were turned away without proof. Any thread.
  const Refusals& refusals() const { return refusals_; }

 private:
  struct Caller {
    std::string address;  ///< by which it counts among those without proof
    Descriptor socket;
    ListenerHandshake handshake;
    Deadline deadline;
    std::unique_ptr<Channel> channel;  ///< has the socket, once the caller has proved itself
  };
  void watch_listener();
  void pause();
  void accept_all();
  void continue_handshake(int fd);
  void begin_channel(int fd);
  void continue_channel(int fd);
  void admit_to_handshake(Descriptor socket, std::string address);
  void make_room();
  void forget_unproven(const std::string& address);
  void refuse(int fd);
  void drop(int fd);
  std::size_t proven() const { return callers_.size() - unproven_callers_; }

  EventLoop& loop_;
  Descriptor listener_;
  ClosedInChildren guard_;
  const Options options_;
  std::map<int, Caller> callers_;                ///< by descriptor: those in their handshake
  std::size_t unproven_callers_ = 0;             ///< those without a channel
  std::map<std::string, std::size_t> unproven_;  ///< how many they are of each address
  Refusals refusals_;
  bool full_ = false;  ///< the listener is not watched
  std::atomic<int> refused_{0};
};

}  // namespace shoal::wire
