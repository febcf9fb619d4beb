#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "shoal/collective/membership/view.h"

namespace shoal::collective::membership {

/// Orders the attempts to decide one slot. No two proposers have the same ballot. Round 0 belongs
/// to the owner of the epoch, who needs no promises for it.
struct Ballot {
  /// A billion attempts a second would take three days; a proposer can always go higher.
  static constexpr std::uint64_t kMostRound = std::uint64_t{1} << 48;

  std::uint64_t round = 0;
  MemberId proposer;
  auto operator<=>(const Ballot&) const = default;
};

/// The decision on a step. `state` and `samples` are those after the decision: an abort leaves them
/// as they were.
struct Outcome {
  enum class Kind : std::uint8_t { kCommit, kAbort };
  std::uint64_t step = 0;
  Kind kind = Kind::kCommit;
  Digest state{};
  std::uint64_t samples = 0;
  std::string cause;          ///< of an abort
  std::vector<MemberId> odd;  ///< of an abort: whose digest most others do not have
  bool operator==(const Outcome&) const = default;
};

/// How far a member is.
struct Place {
  std::uint64_t lineage = 0;
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;  ///< the next one
  Digest state{};
  std::uint64_t samples = 0;
  bool operator==(const Place&) const = default;
};

// The bodies of letters. Those that are about a slot concern the view that the letter names.

/// "I live": to all that watch the sender.
struct Beat {
  Place place;
  std::vector<MemberId> accused;  ///< of whom the sender has heard nothing for too long
  bool leaving = false;
  bool operator==(const Beat&) const = default;
};
/// A member to the owner: its attempt at a step is done, or has failed.
struct Report {
  std::uint64_t step = 0;
  bool failed = false;
  Digest state{};
  std::uint64_t samples = 0;  ///< of this step
  std::string cause;
  bool operator==(const Report&) const = default;
};
/// The owner to the keepers, and their answer.
struct AcceptStep {
  Ballot ballot;
  Outcome outcome;
  bool operator==(const AcceptStep&) const = default;
};
struct AcceptedStep {
  Ballot ballot;
  std::uint64_t step = 0;
  bool operator==(const AcceptedStep&) const = default;
};
/// A member to the owner, again and again: whether it is ready to attempt a step that it may not
/// begin without the owner's word. Who is not ready waits for others to join.
struct Readiness {
  std::uint64_t step = 0;
  bool ready = false;
  bool operator==(const Readiness&) const = default;
};
/// The owner to a member that is ready: it may attempt the step.
struct MayBegin {
  std::uint64_t step = 0;
  bool operator==(const MayBegin&) const = default;
};
/// The owner to everybody. Where a view follows, nobody attempts the next step without its word.
struct Decided {
  Outcome outcome;
  bool view_follows = false;
  bool operator==(const Decided&) const = default;
};
/// A proposer of the next view to the keepers, and their answers.
struct Prepare {
  Ballot ballot;
  bool operator==(const Prepare&) const = default;
};
struct ViewVote {
  Ballot ballot;
  View view;
  bool operator==(const ViewVote&) const = default;
};
struct Promise {
  Ballot ballot;
  std::optional<ViewVote> view;  ///< what the keeper accepted last as the next view
  std::optional<Outcome> step;   ///< and of the last step
  bool operator==(const Promise&) const = default;
};
struct AcceptView {
  ViewVote vote;
  bool operator==(const AcceptView&) const = default;
};
struct AcceptedView {
  Ballot ballot;
  bool operator==(const AcceptedView&) const = default;
};
struct Refusal {
  Ballot refused;
  Ballot promised;
  bool operator==(const Refusal&) const = default;
};
/// The proposer to the keepers of a view that is decided, and their answer.
struct Hold {
  View view;
  bool operator==(const Hold&) const = default;
};
struct Held {
  Digest view{};
  bool operator==(const Held&) const = default;
};
/// To everybody: a majority of its keepers holds this view.
struct Start {
  View view;
  bool operator==(const Start&) const = default;
};
/// From who wants to be a member or a witness, again and again; `ready`: it has the state.
struct Join {
  Member who;
  bool ready = false;
  bool witness = false;
  std::string token{};    ///< where the view asks for one
  std::string kept_by{};  ///< the keeper that it knows: the view's, or it cannot join
  bool operator==(const Join&) const = default;
};
struct JoinRefused {
  std::string why;
  std::string what_to_do;
  bool operator==(const JoinRefused&) const = default;
};
/// Among those who have lost the majority of the keepers and go on (policy `survivors`).
struct ForkAsk {
  Ballot ballot;
  std::vector<MemberId> survivors;
  bool operator==(const ForkAsk&) const = default;
};
struct ForkPromise {
  Ballot ballot;
  Place place;
  bool operator==(const ForkPromise&) const = default;
};
/// A member of another lineage has been met: to the owner of the own one.
struct Met {
  MemberId who;
  Place place;
  bool operator==(const Met&) const = default;
};
/// The lineage of sender and receiver ends: the one of `place` has committed more.
struct Yield {
  Place place;
  bool operator==(const Yield&) const = default;
};

using Body = std::variant<Beat, Report, AcceptStep, AcceptedStep, Decided, Prepare, Promise,
                          AcceptView, AcceptedView, Refusal, Hold, Held, Start, Join, JoinRefused,
                          ForkAsk, ForkPromise, Met, Yield, Readiness, MayBegin>;

struct Letter {
  MemberId from;
  MemberId to;
  std::uint64_t lineage = 0;  ///< with the epoch: the view that the letter is about
  std::uint64_t epoch = 0;
  bool relayed = false;  ///< it may come by way of another member
  Body body;
  /// Who is to get it next; not part of the bytes. It differs from `to` where the letter is
  /// relayed.
  MemberId hop{};
};

/// Serializes a letter, and reads it back. Bytes that no `encode` made are refused by Error(data),
/// which names the field and its place. Every letter has one encoding.
wire::Bytes encode(const Letter& letter);
Letter decode_letter(std::span<const std::byte> bytes);
View decode_view(std::span<const std::byte> bytes);

}  // namespace shoal::collective::membership
