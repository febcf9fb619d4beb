#pragma once

#include <utility>

namespace shoal::wire {

/// Has a socket closed in every process that this one forks, for as long as the object lives. A
/// child that kept it open, such as a worker that loads data, would hide the end of this process
/// from its peers: they see the end of a connection when the last copy of the socket is closed.
///
/// A child that goes on to another program closes the socket anyway (CLOEXEC). Threads: any.
class ClosedInChildren {
 public:
  explicit ClosedInChildren(int socket);
  ~ClosedInChildren();
  ClosedInChildren(ClosedInChildren&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ClosedInChildren& operator=(ClosedInChildren&&) = delete;

 private:
  int socket_;
};

}  // namespace shoal::wire
