#include "shoal/wire/parking.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace shoal::wire {

// The futex is not private to the process: ranks are processes that map the same memory.
void wake(ParkingLot& lot) {
  // The load comes after the caller's sequentially consistent store, and a sleeper's last look
  // after its increment of `sleepers`. With weaker order the processor could load first: then both
  // might see the old value, and the sleeper would miss the wake until its time limit.
  if (lot.sleepers.load(std::memory_order_seq_cst) == 0) return;
  lot.wakeups.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &lot.wakeups, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void sleep_in(ParkingLot& lot, std::uint32_t wakeups, Duration longest) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec time{.tv_sec = seconds.count(), .tv_nsec = (longest - seconds).count()};
  // The result does not matter: woken, interrupted, too late to sleep or out of time, the caller
  // looks again.
  syscall(SYS_futex, &lot.wakeups, FUTEX_WAIT, wakeups, &time, nullptr, 0);
}

void yield_to_others() { sched_yield(); }

SpinPolicy SpinPolicy::for_ranks(int ranks) {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const int online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  // A rank that is pinned to one core sees that one; its peers have others.
  if (ranks <= online) return {2000, cores == 1 ? 100 : 400};
  return {1, 2000};
}

}  // namespace shoal::wire
