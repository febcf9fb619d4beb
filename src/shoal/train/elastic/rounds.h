#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shoal/collective/codec/error_feedback.h"
#include "shoal/optim/outer_optimizer.h"
#include "shoal/train/elastic/member_work.h"
#include "shoal/train/elastic/round_state.h"

namespace shoal::train {

/// Members that train by themselves for a round of `low_communication.every` steps, and bring
/// together what they have learnt at its end (local SGD, DiLoCo). A round is one step of the group:
/// where a member is lost in it, the others go on with what they have trained, without its samples.
/// The optimizer's moments are each member's own, and begin with it.
///
/// Who trains which samples of a round is decided by the commit before it: the members of its view
/// divide the micro-batches of each step among them. Who comes later has none, and waits at the end
/// of the round. A commit before which nobody has trained only divides the round.
class Rounds final : public MemberWork {
 public:
  Rounds(const RunOptions& options, Run& run, const MemberRanks& ranks, OnCommit on_commit);

  StepResult step(MemberGroup& group, const StepInput& input) override;
  RunRecord record_after() const override;
  bool is_at_commit() const override { return run_.record.step == begin_.step; }
  void take_back() override;
  void read(std::span<const std::byte> bytes) override;

 protected:
  RunRecord common_record() const override { return begin_; }

 private:
  /// The part of a member in a round, as it tells the others: numbers alone.
  struct Part {
    double samples = 0;  ///< that it has trained; 0: it has come during the round
    double threads = 0;
    double is_new = 0;   ///< 1: its optimizer has begun with this round
    double first = 0;    ///< sample of each step
    double seconds = 0;  ///< for which it has computed
    double loss = 0;     ///< of its last step
  };
  void begin_at(const RunRecord& record);
  RunRecord end() const;
  StepResult train(const StepInput& given);
  StepResult exchange(MemberGroup& group, const StepResult& own);
  collective::elastic::Attempt attempt(const Column& column,
                                       const collective::elastic::Roster& roster,
                                       const StepResult& own);
  void gather_parts(const Column& column, const StepResult& own);
  at::Tensor sum_of_differences(const Column& column);
  void apply();
  SampleRange next_range(std::int64_t rank) const;
  LineageStep line_of(const collective::elastic::View& view) const;

  const optim::OuterOptions outer_;
  RoundState round_;
  std::optional<collective::ErrorFeedback> feedback_;  ///< present with a codec

  // The round that runs.
  RunRecord begin_;           ///< behind the last commit, without all that members differ in
  SampleRange range_;         ///< of this member in each step; none: it has no part in the round
  std::int64_t trained_ = 0;  ///< samples of this member
  double seconds_ = 0;        ///< for which it has computed
  bool is_new_ = true;        ///< no round is committed that this member has trained
  bool state_is_wrong_ = false;

  // The last attempt to end it.
  std::vector<Part> parts_;               ///< by rank
  double trained_by_all_ = 0;             ///< samples
  std::optional<RoundState::Next> next_;  ///< nothing: it only divides the round
  bool closed_ = false;                   ///< the last step has ended a round
};

}  // namespace shoal::train
