#include "shoal/wire/closed_in_children.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace shoal::wire {
namespace {

struct Sockets {
  std::mutex mutex;
  std::set<int> open;
};

/// Never destroyed: a process may fork while its statics are being destroyed. The lock is held
/// across a fork, so that the child finds the set whole.
Sockets& sockets() {
  static auto& all = *[] {
    auto* made = new Sockets;
    pthread_atfork([] { sockets().mutex.lock(); }, [] { sockets().mutex.unlock(); },
                   [] {
                     for (const int socket : sockets().open) close(socket);
                     sockets().open.clear();
                     sockets().mutex.unlock();
                   });
    return made;
  }();
  return all;
}

}  // namespace

ClosedInChildren::ClosedInChildren(int socket) : socket_(socket) {
  if (socket_ < 0) return;
  const std::lock_guard lock(sockets().mutex);
  sockets().open.insert(socket_);
}

ClosedInChildren::~ClosedInChildren() {
  if (socket_ < 0) return;
  const std::lock_guard lock(sockets().mutex);
  sockets().open.erase(socket_);
}

}  // namespace shoal::wire
