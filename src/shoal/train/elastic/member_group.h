#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "shoal/collective/elastic/elastic_group.h"
#include "shoal/train/elastic/member_columns.h"
#include "shoal/train/elastic/member_ranks.h"

namespace shoal::train {

/// A member was asked to stop while it waited for others: in what it waited for it had no part yet.
class StoppedWhileWaiting final : public std::exception {
 public:
  explicit StoppedWhileWaiting(int asked) : signal(asked) {}
  const char* what() const noexcept override { return "asked to stop while others are awaited"; }
  int signal;
};

/// A group of members as a rank of one of them sees it. All ranks of a member call the same
/// functions in the same order; what they throw is thrown on all of them, unless a rank has failed
/// by itself.
class MemberGroup {
 public:
  using Bytes = MemberRanks::Bytes;
  using Attempt = std::function<collective::elastic::Attempt(const Column&,
                                                             const collective::elastic::Roster&)>;

  virtual ~MemberGroup() = default;
  /// Carries out the next step as ElasticGroup::step has it. The roster and the result have members
  /// on the leader alone. `attempt` may throw FailedTogether on all ranks; whatever else it throws
  /// ends the member.
  virtual collective::elastic::StepResult step(const Attempt& attempt,
                                               const std::function<void()>& apply) = 0;
  /// As ElasticGroup::let_join.
  virtual void let_join() = 0;
  /// Returns true where the last error was thrown on all ranks, between two of their calls: they
  /// may go on together, and save.
  virtual bool has_failed_together() const = 0;
};

/// What the leader tells the others to do.
enum class MemberCommand : std::uint64_t {
  kAttempt,  ///< at a step: an attempt
  kApply,    ///< the step is committed
  kWrite,    ///< the state is wanted
  kRead,     ///< there is another state
  kGoOn,     ///< what all have waited for is done
  kFailed,   ///< it has failed: an error
  kStopped,  ///< the member was asked to stop
};

/// How the ranks of a member write and read their parts of the state.
struct MemberStateAccess {
  std::function<MemberRanks::Bytes()> write;
  std::function<void(std::span<const std::byte>)> read;
};

/// The side of the rank that takes part in the agreement: of a member of one rank there is no
/// other.
class LeadingSide final : public MemberGroup {
 public:
  /// The arguments must outlive it. `group`: is not null once there is one.
  LeadingSide(const MemberRanks& ranks, MemberColumns& columns, const MemberStateAccess& state,
              const std::unique_ptr<collective::elastic::ElasticGroup>& group)
      : ranks_(ranks), columns_(columns), state_(state), group_(group) {}

  collective::elastic::StepResult step(const Attempt& attempt,
                                       const std::function<void()>& apply) override;
  void let_join() override;
  bool has_failed_together() const override { return ranks_.is_alone() || failed_together_; }

  /// Does what only the leader does, for which the others wait, and tells them what `call` returns,
  /// or throws.
  Bytes while_others_wait(const std::function<Bytes()>& call);
  /// Return the state of all ranks as bytes, and take it over. Called within the other functions.
  Bytes write();
  void read(std::span<const std::byte> bytes);

 private:
  void tell(MemberCommand command, const Bytes& bytes = {});
  void tell_failure(const std::function<void()>& call);
  collective::elastic::Attempt try_with_all(const Attempt& attempt,
                                            collective::Communicator& leaders,
                                            const collective::elastic::Roster& roster);

  const MemberRanks& ranks_;
  MemberColumns& columns_;
  const MemberStateAccess& state_;
  const std::unique_ptr<collective::elastic::ElasticGroup>& group_;
  /// The view that all columns are connected in.
  std::optional<MemberRanks::Digest> connected_;
  bool others_wait_ = true;  ///< for what they are told next
  bool failed_together_ = false;
};

/// The side of the other ranks.
class FollowingSide final : public MemberGroup {
 public:
  /// The arguments must outlive it.
  FollowingSide(const MemberRanks& ranks, MemberColumns& columns, const MemberStateAccess& state)
      : ranks_(ranks), columns_(columns), state_(state) {}

  collective::elastic::StepResult step(const Attempt& attempt,
                                       const std::function<void()>& apply) override;
  void let_join() override { wait_for_leader(); }
  bool has_failed_together() const override { return failed_together_; }

  /// Returns what `while_others_wait` of the leader returns, or throws that.
  Bytes wait_for_leader();

 private:
  struct Told {
    MemberCommand command{};
    Bytes bytes;
  };
  Told next();
  std::optional<collective::elastic::StepResult> try_as_told(const Attempt& attempt,
                                                             const Bytes& bytes);

  const MemberRanks& ranks_;
  MemberColumns& columns_;
  const MemberStateAccess& state_;
  bool failed_together_ = false;
};

}  // namespace shoal::train
