// What a step came to: members report to the owner, the owner proposes, the keepers accept.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "shoal/collective/membership/membership.h"

namespace shoal::collective::membership {

void Membership::report(const Event& event) {
  if (!view_ || !view_->has_member(self_.id)) return;
  std::uint64_t epoch = 0;
  Report report;
  if (const auto* ready = std::get_if<StepReady>(&event)) {
    epoch = ready->epoch;
    report = Report{.step = ready->step,
                    .failed = false,
                    .state = ready->state,
                    .samples = ready->samples,
                    .cause = {}};
  } else {
    const auto& failed = std::get<StepFailed>(event);
    epoch = failed.epoch;
    report = Report{
        .step = failed.step, .failed = true, .state = {}, .samples = 0, .cause = failed.cause};
  }
  // One report a step: the owner may have seen it, and what it proposes rests on it.
  if (epoch != place_.epoch || report.step != place_.step || report_ || aborted_) return;
  report_ = report;
  send(view_->owner(), *report_);
}

void Membership::take(const Letter& letter, const Report& report) {
  const MemberId& from = letter.from;
  if (!is_owner() || !view_->has_member(from)) return;
  if (last_outcome_ && last_outcome_->step == report.step) {
    send(from, Decided{.outcome = *last_outcome_, .view_follows = phase_ != Phase::kRunning});
    return;
  }
  if (report.step != place_.step) return;
  waiting_members_.erase(from);
  reports_.try_emplace(from, report);
  propose_step();
}

// The owner proposes one value for a step, and never another.
void Membership::propose_step() {
  if (step_ || aborted_ || is_sealed() || is_asking_for_view() || fork_promised_) return;
  const bool failed = std::any_of(reports_.begin(), reports_.end(),
                                  [](const auto& entry) { return entry.second.failed; });
  const bool complete =
      reports_.size() == view_->members.size() || !rules_.commits_need_all_reports;
  if (!failed && !complete) return;
  step_.emplace(outcome_of_reports(), view_->keepers);
  if (uses_chain()) return ask(step_->outcome, last_outcome_);
  send_to_all(view_->keepers, AcceptStep{.ballot = {0, self_.id}, .outcome = step_->outcome});
}

// Digests that are equal make a commit. Where more than half of the members have one of them, the
// others are odd and must get the state anew.
Outcome Membership::outcome_of_reports() const {
  Outcome outcome{.step = place_.step,
                  .kind = Outcome::Kind::kAbort,
                  .state = place_.state,
                  .samples = place_.samples,
                  .cause = {},
                  .odd = {}};
  std::set<Digest> states;
  std::uint64_t samples = 0;
  for (const auto& [member, report] : reports_) {
    if (report.failed) {
      outcome.cause =
          fmt::format("step {} failed at {}: {}", outcome.step, member.text(), report.cause);
      return outcome;
    }
    states.insert(report.state);
    samples += report.samples;
  }
  if (states.size() == 1) {
    outcome.kind = Outcome::Kind::kCommit;
    outcome.state = *states.begin();
    outcome.samples += samples;
    return outcome;
  }
  // Those that have just joined do not outvote the others, however many they are.
  const std::vector<Member> voters = committed_ ? view_->members : view_->established();
  std::map<Digest, std::size_t> votes;
  for (const Member& voter : voters) {
    if (const auto entry = reports_.find(voter.id); entry != reports_.end())
      ++votes[entry->second.state];
  }
  for (const auto& [state, count] : votes) {
    if (2 * count <= voters.size()) continue;
    for (const auto& [member, report] : reports_)
      if (report.state != state) outcome.odd.push_back(member);
  }
  outcome.cause = fmt::format("step {} led to {} different states; odd: {}", outcome.step,
                              states.size(), text(outcome.odd));
  return outcome;
}

void Membership::take(const Letter& letter, const AcceptStep& request) {
  // Who takes part in a fork votes no more.
  if (!register_ || fork_promised_) return;
  std::visit([&](const auto& answer) { send(letter.from, answer); }, register_->accept(request));
}

void Membership::take(const Letter& letter, const AcceptedStep& accepted) {
  if (!step_ || fork_promised_ || step_->outcome.step != accepted.step) return;
  step_->accepted.count(letter.from);
  if (step_->accepted.is_majority(rules_)) finish_step();
}

void Membership::finish_step() {
  const Outcome outcome = step_->outcome;
  step_.reset();
  reports_.clear();
  last_outcome_ = outcome;
  settle(outcome, false);
  // Between two steps nobody's work is lost by a new view, as long as nobody begins the next one.
  const bool view_follows = wants_another_view() || leaving_ || !leavers_.empty();
  phase_ = view_follows ? Phase::kBetweenSteps : Phase::kRunning;
  may_begin_ = !view_follows;
  ready_members_.clear();
  waiting_members_.clear();
  let_go_.clear();
  for (const MemberId& other : view_->everybody())
    if (other != self_.id) send(other, Decided{.outcome = outcome, .view_follows = view_follows});
  consider_change();
}

// Who has promised to join a fork has said how far it is, and comes no farther until it takes part
// in the fork or hears the majority again. Both letters are repeated.
void Membership::take(const Letter&, const Decided& decided) {
  if (!fork_promised_) settle(decided.outcome, !decided.view_follows);
}

void Membership::settle(const Outcome& outcome, bool may_begin_next) {
  if (outcome.step < place_.step || aborted_) return;
  if (view_->has_member(self_.id)) {
    // Nothing is committed that this member has not reported, so it cannot have missed a step.
    if (outcome.step != place_.step) return;
    const bool is_mine = report_ && report_->state == outcome.state;
    if (outcome.kind == Outcome::Kind::kCommit && !is_mine) {
      end(ErrorKind::kInternal,
          fmt::format("step {} was committed with a state that this member has not", outcome.step),
          "Join again.");
      return;
    }
  }
  report_.reset();
  if (outcome.kind == Outcome::Kind::kCommit) {
    place_.step = outcome.step + 1;
    place_.state = outcome.state;
    place_.samples = outcome.samples;
    pairs_.forget();
    committed_ = true;
    may_begin_ = may_begin_next;
    begun_ = false;
    readiness_.reset();
  } else {
    aborted_ = true;
  }
  last_outcome_ = outcome;
  news_.emplace_back(StepDecided{.epoch = place_.epoch, .outcome = outcome});
}

void Membership::repeat_step_letters() {
  if (readiness_) send(view_->owner(), Readiness{.step = place_.step, .ready = *readiness_});
  if (report_) send(view_->owner(), *report_);
  if (step_ && !uses_chain()) {
    send_to_all(step_->accepted.missing(),
                AcceptStep{.ballot = {0, self_.id}, .outcome = step_->outcome});
  }
}

}  // namespace shoal::collective::membership
