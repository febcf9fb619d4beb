#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>

#include "shoal/wire/closed_in_children.h"
#include "shoal/wire/event_loop.h"
#include "shoal/wire/handshake.h"

namespace shoal::wire {

/// Accepts connections and passes on those whose callers prove that they know the job's key.
/// A caller that is silent, or that does not know the key, does not delay the others. Each caller
/// must complete its handshake within 10 seconds. While 256 callers are in their handshakes, the
/// limit is 3 seconds, and further connections wait in the kernel's queue, as they do while this
/// process has no descriptor for them.
class Acceptor {
 public:
  /// `admit` receives the socket and the hello message of each caller that has proved that it knows
  /// the key. It runs in the thread of `loop`, which alone may use the acceptor.
  Acceptor(EventLoop& loop, Descriptor listener, std::string key,
           std::function<void(Descriptor, const Hello&)> admit);
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
  };
  void watch_listener();
  void pause();
  void accept_all();
  void continue_handshake(int fd);
  void drop(int fd);
  void drop_older_than(Duration age);

  EventLoop& loop_;
  Descriptor listener_;
  ClosedInChildren guard_;
  std::string key_;
  std::function<void(Descriptor, const Hello&)> admit_;
  std::map<int, Caller> callers_;  ///< by descriptor: those in their handshake
  bool full_ = false;              ///< the listener is not watched
  std::atomic<int> refused_{0};
};

}  // namespace shoal::wire
