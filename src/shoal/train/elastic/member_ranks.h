#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/membership/member.h"
#include "shoal/comm/group.h"

namespace shoal::train {

/// Something that all ranks of a member did at the same time, each with other members, has failed
/// on one of them, and is given up on all: each throws this in the same place, and the member goes
/// on.
class FailedTogether final : public Error {
 public:
  using Error::Error;
  explicit FailedTogether(const Error& error) : Error(error) {}
};

/// What the ranks of one member of an elastic group tell each other besides what they train. Rank
/// 0, the leader, takes part in the agreement of the members; the others do what it says, so that
/// all make the same calls in the same order. In a member of one rank every call is a local copy or
/// nothing. A rank that fails by itself aborts the ranks of the run, which ends these calls on all.
///
/// All functions but `check` are collective over the member. One thread.
class MemberRanks {
 public:
  using Digest = collective::membership::Digest;
  using Bytes = std::vector<std::byte>;

  struct Limits {
    /// The leader waits so long for a rank to answer what it must answer at once.
    Duration answer = std::chrono::minutes(1);
    /// And so long for a rank whose part may take as long as that of any other member.
    Duration part = std::chrono::minutes(30);
  };
  /// `member`: all ranks of the member, of which this makes a group of its own.
  explicit MemberRanks(const comm::Group& member, const Limits& limits);
  explicit MemberRanks(const comm::Group& member) : MemberRanks(member, Limits()) {}

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool leads() const { return rank() == 0; }
  bool is_alone() const { return size() == 1; }

  /// Returns the leader's bytes. The others wait for them as long as it takes.
  Bytes from_leader(Bytes bytes) const;
  /// Returns the bytes of each rank on the leader, and nothing on the others. `leave_out`: ranks
  /// that send none, by what all have said of themselves, see `digests`.
  std::vector<Bytes> to_leader(Bytes own, const std::vector<bool>& leave_out) const;
  /// Returns on each rank what the leader has for it; the others pass nothing.
  Bytes part_from_leader(const std::vector<std::span<const std::byte>>& parts) const;
  double sum(double value) const { return group_.sum(value); }
  /// Returns what each rank has passed, in their order.
  std::vector<Digest> digests(const Digest& own) const;
  /// Returns the digest of all of them; of one rank alone its own.
  Digest combined(const Digest& own) const;
  static Digest combined(const std::vector<Digest>& of_ranks);

  /// One rank's part of what all do at the same time.
  struct Part {
    /// Goes on for about a millisecond, and returns true once it is complete. Is called again then,
    /// until all parts are. Throws an Error where it has failed, also after it was complete.
    std::function<bool()> goes_on;
    /// Ends it, so that no rank of another member waits for this one, and nobody touches its memory
    /// any more. Is called where this or another rank has failed, once.
    std::function<void(const Error&)> give_up = [](const Error&) {};
  };
  /// Carries out all parts. Where one has failed, gives up the others, and throws FailedTogether
  /// with what has failed first, on all ranks. Throws Error(peer_lost) on the leader where a rank
  /// does not answer: it may be stopped.
  void together(const Part& part) const;

  /// Throws what has ended the ranks of this member, without waiting.
  void check() const { group_.check(); }

 private:
  void lead(const Part& part) const;
  void follow(const Part& part) const;
  /// The others wait for the leader, however long that waits for other members.
  comm::Options waiting() const;
  Error silent(int known) const;

  comm::Group group_;
  Limits limits_;
};

}  // namespace shoal::train
