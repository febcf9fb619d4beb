#include "shoal/collective/elastic/steady_state.h"

#include <utility>

namespace shoal::collective::elastic {

SteadyState::Step::Step(SteadyState* state) : state_(state) {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex_);
  ++state_->steps_;
}

SteadyState::Step::~Step() {
  if (!state_) return;
  {
    const std::lock_guard lock(state_->mutex_);
    --state_->steps_;
  }
  state_->changed_.notify_all();
}

SteadyState::SteadyState(StateAccess access, const membership::Place& place)
    : access_(std::move(access)), place_(place) {}

std::vector<std::byte> SteadyState::write() {
  const std::lock_guard lock(state_mutex_);
  return access_.write();
}

void SteadyState::apply(const std::function<void()>& apply, const membership::Place& place) {
  const std::lock_guard state_lock(state_mutex_);
  apply();
  const std::lock_guard lock(mutex_);
  place_ = place;
  copy_.reset();
}

bool SteadyState::attempts_a_step() const {
  const std::lock_guard lock(mutex_);
  return steps_ > 0;
}

bool SteadyState::wait_between_steps(Duration longest) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest, [&] { return steps_ == 0; });
}

std::shared_ptr<const SteadyState::Copy> SteadyState::copy(Duration longest) {
  if (!wait_between_steps(longest)) return nullptr;
  // Whoever comes second waits here for the copy of the first.
  const std::lock_guard state_lock(state_mutex_);
  auto copy = std::make_shared<Copy>();
  {
    const std::lock_guard lock(mutex_);
    if (auto made = copy_.lock()) return made;
    copy->place = place_;
  }
  copy->bytes = access_.write();
  const std::lock_guard lock(mutex_);
  copy_ = copy;
  return copy;
}

bool SteadyState::is_current(const Copy& copy) const {
  const std::lock_guard lock(mutex_);
  return copy.place.step == place_.step && copy.place.state == place_.state;
}

}  // namespace shoal::collective::elastic
