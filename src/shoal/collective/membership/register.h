#pragma once

#include <optional>
#include <variant>

#include "shoal/collective/membership/letter.h"
#include "shoal/collective/membership/rules.h"

namespace shoal::collective::membership {

/// A keeper's half of the registers of one epoch (Lamport, "Paxos made simple", 2001: the
/// acceptor). The slots of an epoch are the next view, and what each step came to.
///
/// The owner of the epoch proposes steps under its ballot of round 0, for which it needs no
/// promises, one step after the other: when a keeper accepts a step, all steps before it are
/// decided, so only the last one is kept. The next view is decided under ballots of later rounds. A
/// promise for one of these *seals* the epoch at this keeper: from then on it accepts no step. It
/// also reports the last step that it has accepted. So whoever holds the promises of a majority
/// knows every step that is decided or ever can be in this epoch, and the view that follows says
/// where it ended.
///
/// Nothing is written to disk: a keeper that has lost its memory comes back under another id, which
/// is no keeper.
class Register {
 public:
  explicit Register(MemberId owner, Rules rules = {})
      : rules_(rules), promised_{.round = 0, .proposer = owner} {}

  /// Promises to accept nothing under a lower ballot, unless a higher one has been promised.
  std::variant<Promise, Refusal> prepare(const Prepare& request);
  /// Accepts a step under the owner's ballot, unless the epoch is sealed here.
  std::variant<AcceptedStep, Refusal> accept(const AcceptStep& request);
  /// Accepts the next view, unless a higher ballot has been promised. Seals the epoch as well.
  std::variant<AcceptedView, Refusal> accept(const AcceptView& request);

  bool sealed() const { return promised_.round > 0; }
  const Ballot& promised() const { return promised_; }
  const std::optional<Outcome>& step() const { return step_; }
  const std::optional<ViewVote>& view() const { return view_; }

 private:
  Rules rules_;
  Ballot promised_;
  std::optional<Outcome> step_;   ///< the last one accepted
  std::optional<ViewVote> view_;  ///< accepted under the highest ballot
};

}  // namespace shoal::collective::membership
