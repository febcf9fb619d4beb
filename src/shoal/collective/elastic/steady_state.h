#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/elastic/state_exchange.h"
#include "shoal/collective/membership/letter.h"

namespace shoal::collective::elastic {

/// The state of a member that changes in `apply` alone (StateAccess::steady), for those that read
/// it while the member goes on. One copy serves them all; it is made when the first one asks, and
/// freed when no one holds it. Threads: any may call any function.
class SteadyState {
 public:
  struct Copy {
    membership::Place place;  ///< its digest, and the step that begins with it
    std::vector<std::byte> bytes;
  };
  /// Marks the time in which the member attempts a step: what is copied then would soon be of the
  /// past, and a stream of it takes the uplink from the step's collectives.
  class Step {
   public:
    explicit Step(SteadyState* state);  ///< null: nothing is marked
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    SteadyState* const state_;
  };

  /// `place`: of the state as it is now.
  SteadyState(StateAccess access, const membership::Place& place);

  /// Returns the state as bytes, as `access.write` does, while nothing changes it.
  std::vector<std::byte> write();
  /// Has `apply` change the state, which is that of `place` then.
  void apply(const std::function<void()>& apply, const membership::Place& place);
  /// Returns a copy of the state; null where a step is attempted for `longest` from now on. Throws
  /// what `access.write` throws.
  std::shared_ptr<const Copy> copy(Duration longest);
  /// Returns false where the state has changed since that copy was made.
  bool is_current(const Copy& copy) const;
  bool attempts_a_step() const;
  /// Waits until no step is attempted. Returns false after `longest`.
  bool wait_between_steps(Duration longest);

 private:
  const StateAccess access_;
  std::mutex state_mutex_;    ///< is held while the state is read or changed; taken before `mutex_`
  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  membership::Place place_;
  int steps_ = 0;  ///< that are attempted now: 0 or 1
  std::weak_ptr<const Copy> copy_;
};

}  // namespace shoal::collective::elastic
