#include "shoal/wire/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>

#include "shoal/base/system_error.h"

namespace shoal::wire {

EventLoop::EventLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (epoll_.get() < 0 || wake_.get() < 0)
    throw system_error(ErrorKind::kResource, "event_loop", "no descriptors left");
  // The eventfd stays readable until it is read, so a wake that comes between two waits ends the
  // next one.
  watch(wake_.get(), EPOLLIN, [fd = wake_.get()](std::uint32_t) {
    std::uint64_t count;
    [[maybe_unused]] const auto n = read(fd, &count, sizeof count);
  });
}

void EventLoop::watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  const int how = watched_.contains(fd) ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (epoll_ctl(epoll_.get(), how, fd, &event) != 0)
    throw system_error(ErrorKind::kResource, "event_loop", "cannot watch a descriptor");
  watched_[fd] = std::make_shared<std::function<void(std::uint32_t)>>(std::move(ready));
}

void EventLoop::remove(int fd) {
  if (watched_.erase(fd) > 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::run_once(Duration limit) {
  std::array<epoll_event, 64> events;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                           static_cast<int>(ms));
  // A callback may close descriptors whose events are still in `events`. Those that are no longer
  // watched are skipped. A new connection may have got a number again and then receives the old
  // event: callbacks read without blocking and so find nothing.
  for (int i = 0; i < n; ++i) {
    if (const auto entry = watched_.find(events[i].data.fd); entry != watched_.end()) {
      const auto ready = entry->second;  // lives on when the callback forgets itself
      (*ready)(events[i].events);
    }
  }
}

void EventLoop::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = write(wake_.get(), &one, sizeof one);
}

}  // namespace shoal::wire
