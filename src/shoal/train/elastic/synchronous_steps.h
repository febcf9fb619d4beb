#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shoal/optim/undo_log.h"
#include "shoal/train/elastic/gradient_sum.h"
#include "shoal/train/elastic/member_work.h"

namespace shoal::train {

/// Members that add up their gradients in every step. An attempt computes the gradients of this
/// member's micro-batches, adds up those of all, and updates; what that has changed is taken back
/// where the others do not commit it.
class SynchronousSteps final : public MemberWork {
 public:
  SynchronousSteps(const RunOptions& options, Run& run, const MemberRanks& ranks,
                   OnCommit on_commit);

  StepResult step(MemberGroup& group, const StepInput& input) override;
  RunRecord record_after() const override { return run_.record_after(1); }
  void take_back() override;
  std::vector<std::byte> write() override;

 protected:
  RunRecord common_record() const override { return run_.record_after(0); }

 private:
  /// Each member says this of its part of a step before all go on.
  struct Part {
    double labels = 0;
    double threads = 0;
  };
  collective::elastic::Attempt attempt(const Column& column,
                                       const collective::elastic::Roster& roster, StepInput input);
  void add_up(const Column& column, StepSum& sum);
  void tell(const collective::elastic::StepResult& step);

  optim::UndoLog undo_;
  GradientSum sum_;
  /// An attempt has changed the state, and is not committed.
  bool tried_ = false;
  std::optional<optim::LossScale::State> scale_before_;
  StepResult result_;
  std::vector<Part> parts_;
};

}  // namespace shoal::train
