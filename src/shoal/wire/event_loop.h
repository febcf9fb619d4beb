#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "shoal/base/clock.h"
#include "shoal/wire/local_rendezvous.h"

namespace shoal::wire {

/// Calls back when descriptors are ready (epoll, level-triggered). Callbacks may watch and forget
/// any descriptor, their own included. All functions but `wake` belong to the thread that runs the
/// loop; before it runs, to the thread that made it.
class EventLoop {
 public:
  EventLoop();
  /// `events`: EPOLLIN, EPOLLOUT. A descriptor that is watched already gets new events and a new
  /// callback.
  void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready);
  void remove(int fd);
  /// Waits until something is ready, `wake` was called or `limit` is over, and calls back.
  void run_once(Duration limit);
  /// Ends the wait of `run_once`. Any thread.
  void wake();

 private:
  Descriptor epoll_, wake_;
  std::map<int, std::shared_ptr<std::function<void(std::uint32_t)>>> watched_;
};

}  // namespace shoal::wire
