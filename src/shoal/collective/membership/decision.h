#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shoal/collective/membership/letter.h"
#include "shoal/collective/membership/rules.h"

namespace shoal::collective::membership {

/// Counts which of some keepers have voted, each once.
class Tally {
 public:
  explicit Tally(std::vector<MemberId> keepers) : keepers_(std::move(keepers)) {}
  /// Counts a vote of one of the keepers; another one's is ignored.
  void count(const MemberId& keeper);
  std::size_t votes() const { return voted_.size(); }
  bool is_majority(const Rules& rules) const { return votes() >= rules.majority(keepers_.size()); }
  /// The keepers that have not voted.
  std::vector<MemberId> missing() const;
  const std::vector<MemberId>& keepers() const { return keepers_; }

 private:
  std::vector<MemberId> keepers_;
  std::vector<MemberId> voted_;
};

/// The owner's half of a step's slot: the value that it has proposed under its ballot of round 0,
/// which is decided once a majority of the keepers has accepted it. The owner makes one of these
/// for a step and never another.
struct StepDecision {
  StepDecision(Outcome value, std::vector<MemberId> keepers)
      : outcome(std::move(value)), accepted(std::move(keepers)) {}
  Outcome outcome;
  Tally accepted;
};

/// A proposer's half of the slot of the next view, for one ballot (Lamport, "Paxos made simple"):
/// collects promises, proposes, collects votes. What a majority of the promises reports as accepted
/// may be decided, so the one of the highest ballot is proposed in place of the proposer's wish.
class ViewDecision {
 public:
  enum class Phase : std::uint8_t { kPreparing, kWishing, kAccepting, kDecided };

  /// `keepers`: those of the view that ends.
  ViewDecision(std::vector<MemberId> keepers, Ballot ballot, Rules rules = {});

  Phase phase() const { return phase_; }
  const Ballot& ballot() const { return ballot_; }
  /// The keepers whose answer is missing, and what to ask them, again after a while.
  std::vector<MemberId> unanswered() const;
  Body request() const;

  /// Answers of other ballots and phases are ignored. After a majority of promises the phase is
  /// kAccepting where a view must be taken over, otherwise kWishing.
  void on(const MemberId& keeper, const Promise& promise);
  void on(const MemberId& keeper, const AcceptedView& accepted);
  /// In the phase kWishing: the view to propose. It follows `last_step`.
  void wish(View view);
  /// The last step that a promise has reported: it may be decided, all before it are, and none
  /// behind it ever will be.
  const std::optional<Outcome>& last_step() const { return last_step_; }
  /// The value, in the phases kAccepting and kDecided.
  const View& view() const { return value_->view; }
  /// While preparing: what promises have reported so far under the highest ballot.
  const std::optional<ViewVote>& value() const { return value_; }

 private:
  Rules rules_;
  Ballot ballot_;
  Phase phase_ = Phase::kPreparing;
  Tally promised_;
  Tally accepted_;
  std::optional<ViewVote> value_;
  std::optional<Outcome> last_step_;
};

}  // namespace shoal::collective::membership
