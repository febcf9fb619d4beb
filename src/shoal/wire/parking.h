#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "shoal/base/clock.h"

namespace shoal::wire {

/// Where the ranks of a group sleep when spinning has not helped; lies in memory that they share.
/// Zero-initialised.
struct alignas(64) ParkingLot {
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint32_t> bell;
};

/// Wakes whoever sleeps. Call it after a sequentially consistent store of what they wait for; costs
/// one load when nobody sleeps.
void wake(ParkingLot& lot);

/// Sleeps for at most `longest`, or until woken, unless `bell` has rung since it was read.
void sleep_in(ParkingLot& lot, std::uint32_t bell, Duration longest);

/// One instant of a busy loop.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How long to try before sleeping. With more ranks than cores spinning only keeps the peer from
/// its core, so yield at once; with as many it does when something else has a core and two ranks
/// share the other, which shows in how long a yield takes: then the spins are fewer until they help
/// again.
class Patience {
 public:
  Patience(int most_spins, int yields)
      : yields(yields), spins_(most_spins), most_spins_(most_spins) {}
  static Patience for_ranks(int ranks);

  int spins() const { return spins_; }
  void spinning_helped() {
    if (spins_ < most_spins_) spins_ = std::min(most_spins_, 2 * spins_);
  }
  /// A yield took so long: others ran on this core, or nobody.
  void yielded(Duration took) {
    if (took > kOthersRan) {
      {
        {
          {
            {
              {
                {
                  {
                    {
                      {
                        {
                          {
                            {
                              {
                                {
                                  {
                                    {
                                      {
                                        {
                                          {
                                            {
                                              {
                                                {
                                                  {
                                                    {
                                                      {
                                                        {
                                                          {
                                                            {
                                                              { spins_ = std::max(spins_ / 2, 1); }
                                                            }
                                                          }
                                                        }
                                                      }
                                                    }
                                                  }
                                                }
                                              }
                                            }
                                          }
                                        }
                                      }
                                    }
                                  }
                                }
                              }
                            }
                          }
                        }
                      }
                    }
                  }
                }
              }
            }
          }
        }
      }
    } else {
      {
        {
          {
            {
              {
                {
                  {
                    {
                      {
                        {
                          {
                            {
                              {
                                {
                                  {
                                    {
                                      {
                                        {
                                          {
                                            {
                                              {
                                                {
                                                  {
                                                    {
                                                      {
                                                        {
                                                          {
                                                            {
                                                              { spinning_helped(); }
                                                            }
                                                          }
                                                        }
                                                      }
                                                    }
                                                  }
                                                }
                                              }
                                            }
                                          }
                                        }
                                      }
                                    }
                                  }
                                }
                              }
                            }
                          }
                        }
                      }
                    }
                  }
                }
              }
            }
          }
        }
      }
    }
  }

  const int yields;

 private:
  static constexpr Duration kOthersRan = std::chrono::microseconds(4);
  int spins_, most_spins_;
};

/// Waits until `ready()`: spins, yields, then sleeps in `lot`. `check()` runs now and then off the
/// fast path; it throws to give up.
template <class Ready, class Check>
void wait_for(ParkingLot& lot, Patience& patience, Ready&& ready, Check&& check);

void yield_to_others();

template <class Ready, class Check>
void wait_for(ParkingLot& lot, Patience& patience, Ready&& ready, Check&& check) {
  for (int i = 0; i < patience.spins(); ++i) {
    if (ready()) {
      if (i > 0) patience.spinning_helped();
      return;
    }
    pause();
  }
  const auto before = Clock::now();
  yield_to_others();
  patience.yielded(Clock::now() - before);
  for (;;) {
    for (int i = 0; i < patience.yields; ++i) {
      if (ready()) return;
      if (i % 64 == 0) check();
      yield_to_others();
    }
    check();
    const std::uint32_t bell = lot.bell.load(std::memory_order_seq_cst);
    lot.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const bool done = ready();
    if (!done) sleep_in(lot, bell, std::chrono::milliseconds(5));
    lot.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (done) return;
  }
}

}  // namespace shoal::wire
