#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "shoal/wire/channel.h"
#include "shoal/wire/closed_in_children.h"
#include "shoal/wire/event_loop.h"
#include "shoal/wire/handshake.h"

namespace shoal::wire {

/// Accepts connections and passes on those whose callers prove that they know the job's key, and
/// that complete the handshake of their channel. A caller that is silent, or that does not know the
/// key, does not delay the others. Each caller must complete both handshakes within 10 seconds.
/// While 256 callers are in their handshakes, the limit is 3 seconds, and further connections wait
/// in the kernel's queue, as they do while this process has no descriptor for them.
class Acceptor {
 public:
  struct Options {
    std::string key;
    /// What callers are told once they have proved that they know the key.
    Hello hello{};
    /// Makes the channel of a caller that has proved it, from its socket and its hello message.
    /// Null refuses the caller. Where there is no such function, channels are plain.
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

 private:
  struct Caller {
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
  void drop(int fd);
  void drop_older_than(Duration age);

  EventLoop& loop_;
  Descriptor listener_;
  ClosedInChildren guard_;
  const Options options_;
  std::map<int, Caller> callers_;  ///< by descriptor: those in their handshake
  bool full_ = false;              ///< the listener is not watched
  std::atomic<int> refused_{0};
};

}  // namespace shoal::wire
