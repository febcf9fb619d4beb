#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "shoal/base/clock.h"

namespace shoal::wire {

/// A place in which the ranks of a group sleep (futex(2)) when spinning has not helped. It lies in
/// zero-initialised memory that the ranks share.
///
/// A rank that goes to sleep reads `wakeups`, announces itself in `sleepers`, and looks once more
/// for what it waits for. A rank that has stored something looks at `sleepers` after its store. All
/// of these are sequentially consistent, so one of the two sees the other: no wakeup is lost.
struct alignas(64) ParkingLot {
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint32_t> wakeups;
};

/// Wakes all sleeping ranks. The caller has stored what they wait for, by a sequentially consistent
/// store. The call costs one load when no rank sleeps.
void wake(ParkingLot& lot);

/// Sleeps for at most `longest`, or until woken. Returns at once when `lot.wakeups` is no longer
/// `wakeups`.
void sleep_in(ParkingLot& lot, std::uint32_t wakeups, Duration longest);

/// Tells the processor that this is a busy loop.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Decides how often a wait spins and yields before it sleeps.
///
/// With more ranks than cores a spin only keeps the peer from its core, so a wait yields at once.
/// With as many cores as ranks the same happens while another program has a core and two ranks
/// share the other. A yield that takes long shows it: the spins are halved then, and doubled again
/// when they help or when a yield is quick.
class SpinPolicy {
 public:
  SpinPolicy(int most_spins, int yields)
      : yields(yields), spins_(most_spins), most_spins_(most_spins) {}
  static SpinPolicy for_ranks(int ranks);

  int spins() const { return spins_; }
  void spinning_helped() {
    if (spins_ < most_spins_) spins_ = std::min(most_spins_, 2 * spins_);
  }
  /// Learns from how long a yield `took`: after a long one other threads have run on this core.
  void yielded(Duration took) {
    if (took > kOthersRan) {
      spins_ = std::max(spins_ / 2, 1);
    } else {
      spinning_helped();
    }
  }

  const int yields;

 private:
  static constexpr Duration kOthersRan = std::chrono::microseconds(4);
  int spins_;
  int most_spins_;
};

/// Waits until `ready()`: spins, yields, then sleeps in `lot`. `check()` runs now and then off the
/// fast path; it throws to give up, and returns how long a sleep may be.
template <class Ready, class Check>
void wait_for(ParkingLot& lot, SpinPolicy& policy, Ready&& ready, Check&& check);

void yield_to_others();

template <class Ready, class Check>
void wait_for(ParkingLot& lot, SpinPolicy& policy, Ready&& ready, Check&& check) {
  for (int i = 0; i < policy.spins(); ++i) {
    if (ready()) {
      if (i > 0) policy.spinning_helped();
      return;
    }
    pause();
  }
  const auto before = Clock::now();
  yield_to_others();
  policy.yielded(Clock::now() - before);
  for (;;) {
    for (int i = 0; i < policy.yields; ++i) {
      if (ready()) return;
      if (i % 64 == 0) static_cast<void>(check());
      yield_to_others();
    }
    const Duration longest = check();
    // `wakeups` is read before the last look: a wake in between changes it, and the futex call then
    // returns at once. The time limit bounds the wait for a peer that died without a wake.
    const std::uint32_t wakeups = lot.wakeups.load(std::memory_order_seq_cst);
    lot.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const bool done = ready();
    if (!done) sleep_in(lot, wakeups, longest);
    lot.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (done) return;
  }
}

}  // namespace shoal::wire
