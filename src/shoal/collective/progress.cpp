#include "shoal/collective/progress.h"

namespace shoal::collective {

bool Progress::skips(const Communicator* communicator, const Communicator* waiting) const {
  return communicator == waiting || communicator->idle() ||
         std::find(in_call_.begin(), in_call_.end(), communicator) != in_call_.end();
}

bool Progress::others_in_flight(const Communicator* waiting) const {
  return std::any_of(listed_.begin(), listed_.end(), [&](const Communicator* communicator) {
    return !skips(communicator, waiting);
  });
}

// A communicator that is advanced here may wait itself (a full queue of descriptors). It does not
// come back here: the one that it would advance is in the middle of this call.
void Progress::advance_all_but(const Communicator* waiting) {
  if (advancing_) return;
  advancing_ = true;
  // By index: advancing a communicator makes and destroys none, but the list is read anew to be
  // safe against one that does.
  for (std::size_t i = 0; i < listed_.size(); ++i) {
    if (skips(listed_[i], waiting)) continue;
    try {
      listed_[i]->poll(Duration::zero());
    } catch (const Error&) {
      // Kept by that communicator, and by the transport or the memory that it shares with this one,
      // whose wait then ends with it.
    } catch (...) {
      advancing_ = false;
      throw;
    }
  }
  advancing_ = false;
}

}  // namespace shoal::collective
