#pragma once

#include <functional>
#include <map>
#include <string>

#include "shoal/wire/event_loop.h"
#include "shoal/wire/handshake.h"

namespace shoal::wire {

/// Accepts connections and passes on those whose callers prove that they know the job's key.
/// Strangers, noise and silent callers delay no other: each has 10 seconds for its handshake, and 3
/// when more than 256 are in theirs; the kernel keeps further ones in its queue meanwhile.
class Acceptor {
 public:
  /// `admit` gets the socket and the hello message of each caller that has passed. It runs in the
  /// thread of `loop`, to which all of the acceptor belongs.
  Acceptor(EventLoop& loop, Descriptor listener, std::string key,
           std::function<void(Descriptor, const Hello&)> admit);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  /// Closes connections whose handshake took too long; to be called now and then.
  void drop_expired();

 private:
  struct Caller {
    Descriptor socket;
    ListenerHandshake handshake;
    Deadline deadline;
  };
  void watch_listener();
  void accept_all();
  void continue_handshake(int fd);
  void drop(int fd);
  void drop_older_than(Duration age);

  EventLoop& loop_;
  Descriptor listener_;
  std::string key_;
  std::function<void(Descriptor, const Hello&)> admit_;
  std::map<int, Caller> callers_;  ///< by descriptor: those in their handshake
  bool full_ = false;              ///< the listener is not watched
};

}  // namespace shoal::wire
