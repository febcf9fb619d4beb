#pragma once

#include <functional>
#include <map>
#include <string>

#include "shoal/wire/event_loop.h"
#include "shoal/wire/handshake.h"

namespace shoal::wire {

/// Lets in those who know the key. Strangers, noise and those who say nothing are turned away
/// without anyone waiting for them: each has 10 seconds, and 3 when more than 256 come at a time,
/// of whom the kernel keeps the rest.
class Door {
 public:
  /// `admit` gets the socket of each caller that has passed. Runs in the thread of `loop`.
  Door(EventLoop& loop, Descriptor listener, std::string key,
       std::function<void(Descriptor, const Hello&)> admit);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  /// Turns away those whose time is over; to be called now and then.
  void tidy();

 private:
  struct Caller {
    Descriptor socket;
    ListenerHandshake handshake;
    Deadline deadline;
  };
  void open();
  void accept_all();
  void hear(int fd);
  void drop(int fd);
  void drop_older_than(Duration age);

  EventLoop& loop_;
  Descriptor listener_;
  std::string key_;
  std::function<void(Descriptor, const Hello&)> admit_;
  std::map<int, Caller> callers_;
  bool full_ = false;
};

}  // namespace shoal::wire
