// This file decides when a step begins. Who joins must not undo the work of those that are there,
// so a view with joiners follows a commit, or begins while no attempt can run.
#include <algorithm>
#include <utility>

#include "shoal/collective/membership/membership.h"

namespace shoal::collective::membership {

bool Membership::is_next_step(std::uint64_t epoch, std::uint64_t step) const {
  return view_ && view_->has_member(self_.id) && epoch == place_.epoch && step == place_.step &&
         !report_ && !aborted_;
}

// Behind a commit members go on at once, so a step costs no more letters than its report. The owner
// is asked in a new view, and where it has said that one follows.
void Membership::ask_to_begin(const AttemptAsked& asked) {
  if (!is_next_step(asked.epoch, asked.step)) return;
  if (may_begin_ || begun_) return begin_attempt();
  tell_readiness(true);
}

void Membership::await_joiners(const JoinersAwaited& awaited) {
  if (!is_next_step(awaited.epoch, awaited.step) || begun_) return;
  may_begin_ = false;
  if (readiness_ != false) tell_readiness(false);
}

void Membership::begin_attempt() {
  begun_ = true;
  readiness_.reset();
  news_.emplace_back(AttemptBegins{.epoch = place_.epoch, .step = place_.step});
}

void Membership::tell_readiness(bool ready) {
  readiness_ = ready;
  send(view_->owner(), Readiness{.step = place_.step, .ready = ready});
}

void Membership::take(const Letter& letter, const Readiness& readiness) {
  const MemberId& from = letter.from;
  if (!is_owner() || !view_->has_member(from) || readiness.step != place_.step || aborted_) return;
  if (readiness.ready) {
    waiting_members_.erase(from);
    ready_members_.insert(from);
  } else {
    // A letter that it sent before it was ready may come late.
    if (let_go_.contains(from)) return;
    ready_members_.erase(from);
    waiting_members_.insert(from);
  }
  let_members_begin();
  consider_change();
}

// In a new view all begin together, when the last one has the state and is ready. In a step that
// runs, whoever was waiting for joiners begins when nobody waits for them any more: without those
// who do it could not end, and who waits here can be asked to stop.
void Membership::let_members_begin() {
  if (change_ || is_asking_for_view() || holding_ || held_ || fork_promised_ || is_sealed()) return;
  if (phase_ != Phase::kRunning && ready_members_.size() < view_->members.size()) return;
  if (!waiting_members_.empty()) return;
  phase_ = Phase::kRunning;
  for (const MemberId& member : std::exchange(ready_members_, {})) {
    let_go_.insert(member);
    send(member, MayBegin{.step = place_.step});
  }
}

void Membership::take(const Letter&, const MayBegin& may_begin) {
  if (is_next_step(place_.epoch, may_begin.step) && readiness_ == true) begin_attempt();
}

bool Membership::has_ready_joiners() const {
  return std::any_of(joiners_.begin(), joiners_.end(),
                     [](const auto& entry) { return entry.second.join.ready; });
}

bool Membership::wants_another_view() const {
  // Who joins keeps nothing in its first view: a run must not depend on somebody that it hardly
  // knows. Once a step has been committed with it, it may be a keeper.
  const bool could_have_more_keepers =
      committed_ && choose_keepers(view_->members, view_->witnesses).size() > view_->keepers.size();
  return has_ready_joiners() || could_have_more_keepers;
}

// In a new view some may still be receiving the state: another view would make them start over, and
// who joins again and again could keep the others from ever committing a step. So joiners come in
// there only where somebody waits for them and all others have the state. Somebody who waits for
// them later keeps the step that runs from ending.
bool Membership::interrupts_no_attempt() const {
  if (phase_ == Phase::kBetweenSteps) return true;
  if (waiting_members_.empty()) return false;
  return phase_ == Phase::kRunning ||
         ready_members_.size() + waiting_members_.size() == view_->members.size();
}

}  // namespace shoal::collective::membership
