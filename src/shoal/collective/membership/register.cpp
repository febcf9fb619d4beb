#include "shoal/collective/membership/register.h"

#include <algorithm>

namespace shoal::collective::membership {

std::variant<Promise, Refusal> Register::prepare(const Prepare& request) {
  const bool promised_higher = request.ballot < promised_;
  if (request.ballot.round == 0 || (promised_higher && rules_.refuses_lower_ballots))
    return Refusal{.refused = request.ballot, .promised = promised_};
  promised_ = std::max(promised_, request.ballot);
  Promise promise{.ballot = request.ballot, .view = std::nullopt, .step = std::nullopt};
  if (rules_.promise_reports_view) promise.view = view_;
  if (rules_.promise_reports_step) promise.step = step_;
  return promise;
}

std::variant<AcceptedStep, Refusal> Register::accept(const AcceptStep& request) {
  const bool is_sealed = sealed() && rules_.promise_seals;
  const bool is_owners = request.ballot.round == 0;
  // A copy of an old letter may ask for a step before the last one: that one is decided, and the
  // last one stays. The owner never proposes two values for a step.
  const bool is_late = step_ && request.outcome.step < step_->step;
  const bool contradicts =
      step_ && request.outcome.step == step_->step && request.outcome != *step_;
  if (is_sealed || !is_owners || is_late || contradicts)
    return Refusal{.refused = request.ballot, .promised = promised_};
  step_ = request.outcome;
  return AcceptedStep{.ballot = request.ballot, .step = request.outcome.step};
}

std::variant<AcceptedView, Refusal> Register::accept(const AcceptView& request) {
  const Ballot& ballot = request.vote.ballot;
  const bool promised_higher = ballot < promised_;
  if (ballot.round == 0 || (promised_higher && rules_.refuses_lower_ballots))
    return Refusal{.refused = ballot, .promised = promised_};
  promised_ = std::max(promised_, ballot);
  view_ = request.vote;
  return AcceptedView{.ballot = ballot};
}

}  // namespace shoal::collective::membership
