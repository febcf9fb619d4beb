#include "shoal/collective/membership/decision.h"

#include <utility>

#include "shoal/base/check.h"

namespace shoal::collective::membership {
void Tally::count(const MemberId& keeper) {
  if (contains(keepers_, keeper) && !contains(voted_, keeper)) voted_.push_back(keeper);
}

std::vector<MemberId> Tally::missing() const {
  std::vector<MemberId> missing;
  for (const MemberId& keeper : keepers_)
    if (!contains(voted_, keeper)) missing.push_back(keeper);
  return missing;
}

ViewDecision::ViewDecision(std::vector<MemberId> keepers, Ballot ballot, Rules rules)
    : rules_(rules), ballot_(ballot), promised_(keepers), accepted_(std::move(keepers)) {
  SHOAL_CHECK(ballot.round > 0, "round 0 is for steps");
}

std::vector<MemberId> ViewDecision::unanswered() const {
  if (phase_ == Phase::kPreparing) return promised_.missing();
  if (phase_ == Phase::kAccepting) return accepted_.missing();
  return {};
}

Body ViewDecision::request() const {
  if (phase_ == Phase::kPreparing) return Prepare{.ballot = ballot_};
  return AcceptView{.vote = *value_};
}

void ViewDecision::on(const MemberId& keeper, const Promise& promise) {
  if (phase_ != Phase::kPreparing || promise.ballot != ballot_) return;
  if (!contains(promised_.keepers(), keeper)) return;
  promised_.count(keeper);
  if (promise.step && (!last_step_ || last_step_->step < promise.step->step))
    last_step_ = promise.step;
  // Until a majority has promised, `value_` is the candidate of the highest ballot.
  if (promise.view && rules_.adopts_accepted_view &&
      (!value_ || value_->ballot < promise.view->ballot))
    value_ = promise.view;
  if (!promised_.is_majority(rules_)) return;
  phase_ = value_ ? Phase::kAccepting : Phase::kWishing;
  if (value_) value_->ballot = ballot_;
}

void ViewDecision::wish(View view) {
  SHOAL_CHECK(phase_ == Phase::kWishing, "a view is proposed once, after a majority of promises");
  value_ = ViewVote{.ballot = ballot_, .view = std::move(view)};
  phase_ = Phase::kAccepting;
}

void ViewDecision::on(const MemberId& keeper, const AcceptedView& accepted) {
  if (phase_ != Phase::kAccepting || accepted.ballot != ballot_) return;
  accepted_.count(keeper);
  // The keepers of the view that ends decide, however many the next one has.
  const std::size_t voters =
      rules_.counts_with_new_keepers ? value_->view.keepers.size() : accepted_.keepers().size();
  if (accepted_.votes() >= rules_.majority(voters)) phase_ = Phase::kDecided;
}

}  // namespace shoal::collective::membership
