#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/communicator.h"

namespace shoal::collective {

/// The communicators of one rank that advance one another: while the rank waits in one of them,
/// operations in flight in the others go on. Without it a rank that waits in one group holds up the
/// peers that need its part of an operation of another group, which may be those that it waits for:
/// ranks that use two groups in different orders would hang.
///
/// Threads: all communicators of one Progress are used by one thread at a time. Communicators of a
/// helper thread belong to a Progress of their own, or to none.
class Progress {
 public:
  /// Lists a communicator for as long as the place lives. Without a Progress it does nothing.
  class Place {
   public:
    Place(std::shared_ptr<Progress> progress, Communicator& communicator)
        : progress_(std::move(progress)), communicator_(&communicator) {
      if (progress_) progress_->listed_.push_back(communicator_);
    }
    ~Place() { leave(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    /// Takes the communicator off the list: the one that it is a part of is listed in its place,
    /// and calls it. It goes on advancing others while it waits.
    void leave() {
      if (progress_) std::erase(progress_->listed_, communicator_);
    }

    /// Advances all other listed communicators with operations in flight, without waiting. Call it
    /// in `test`, and in every wait now and then and before sleeping. Their errors are not thrown
    /// here: the communicator that failed keeps its first cause, and throws it when it is used.
    void advance_others() const {
      if (progress_) progress_->advance_all_but(communicator_);
    }

    /// Returns how long a wait may sleep before it calls advance_others again: `longest` unless
    /// other communicators have operations in flight, whose events may not end this sleep.
    Duration longest_sleep(Duration longest) const {
      return progress_ && progress_->others_in_flight(communicator_)
                 ? std::min<Duration>(longest, kSliceBesideOthers)
                 : longest;
    }

   private:
    std::shared_ptr<Progress> progress_;
    Communicator* communicator_;
  };

  /// Marks a communicator as being called while the object lives: it is made of other communicators
  /// whose waits would otherwise advance it in the middle of its own call.
  class InCall {
   public:
    InCall(Progress* progress, Communicator& communicator) : progress_(progress) {
      if (progress_) progress_->in_call_.push_back(&communicator);
    }
    ~InCall() {
      if (progress_) progress_->in_call_.pop_back();
    }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;

   private:
    Progress* progress_;
  };

 private:
  static constexpr Duration kSliceBesideOthers = std::chrono::microseconds(100);

  bool skips(const Communicator* communicator, const Communicator* waiting) const;
  bool others_in_flight(const Communicator* waiting) const;
  void advance_all_but(const Communicator* waiting);

  std::vector<Communicator*> listed_;
  std::vector<Communicator*> in_call_;
  bool advancing_ = false;
};

}  // namespace shoal::collective
