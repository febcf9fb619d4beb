#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "shoal/collective/elastic/elastic_group.h"
#include "shoal/train/config/lineage.h"
#include "shoal/train/elastic/member_batch.h"
#include "shoal/train/elastic/member_group.h"
#include "shoal/train/elastic/member_ranks.h"
#include "shoal/train/elastic/run_state.h"
#include "shoal/train/run.h"
#include "shoal/train/trainer.h"

namespace shoal::train {

/// The work of a member of an elastic group, and the state that all members have alike. One thread,
/// but for `write`, which is called by others while nothing changes the state. All references must
/// outlive it.
class MemberWork {
 public:
  /// Is called for each step of the group that is committed and has trained something, with its
  /// line of the lineage.
  using OnCommit = std::function<void(const collective::elastic::StepResult&, LineageStep)>;

  /// `ranks`: of this member. All of them make the same calls.
  MemberWork(const RunOptions& options, Run& run, const MemberRanks& ranks, StateTensors tensors,
             OnCommit on_commit);
  virtual ~MemberWork() = default;
  MemberWork(const MemberWork&) = delete;
  MemberWork& operator=(const MemberWork&) = delete;

  /// Carries out the step at `run.record`, with the others where that is due. `input` needs no
  /// labels. Throws as ElasticGroup::step and TrainingStep::run.
  virtual StepResult step(MemberGroup& group, const StepInput& input) = 0;
  /// Returns what `run.record` becomes behind the last `step`.
  virtual RunRecord record_after() const = 0;
  /// Returns whether `run.record` and the parameters are those of the last commit.
  virtual bool is_at_commit() const { return true; }
  /// Makes state and `run.record` those that were committed last.
  virtual void take_back() = 0;

  /// Return this rank's part of the state that was committed last as bytes, and take over that of
  /// the group. Throws as RunState, and Error(config) where the group is behind the checkpoint of
  /// this run.
  virtual std::vector<std::byte> write();
  virtual void read(std::span<const std::byte> bytes);
  /// Says who this member is, `self`, and which state the group has committed last.
  void enter(std::string self, const Digest& state);
  /// Throws Error(data) where the state is not the one that was committed last. Call it behind
  /// `take_back`, on all ranks of the member.
  void check_state() const;
  /// As long as the caller has it, nobody writes the state.
  std::unique_lock<std::mutex> hold_state() { return std::unique_lock(writing_); }

  /// Return the part of its samples that this member has trained in the last step, and the seconds
  /// in which it has read them.
  double share() const { return share_; }
  double data_wait_s() const { return data_wait_s_; }

  /// Injects the fault of this place on its rank. Returns true where the state must be made wrong.
  bool fault_at(const char* place) const;

 protected:
  /// Returns what the state says about the position of the run: the same on all members.
  virtual RunRecord common_record() const = 0;
  /// The step as one member would run it, where the ranks of a member that have samples of their
  /// own count as one.
  BatchPlan plan() const { return plan_of_members(run_.batch, run_.share); }
  /// Reads this rank's part of these samples of the global batch at `run.record`, which are this
  /// member's.
  RankBatch read_batch(const SampleRange& samples);
  /// Returns the digest of the states of all ranks, of which this one has `own`. Collective over
  /// the member.
  Digest of_all_ranks(const Digest& own) const { return ranks_.combined(own); }
  /// Remembers a commit and tells it: `line` needs no digests.
  void committed(const collective::elastic::StepResult& step, LineageStep line);
  /// Returns what `step` returns. Where its numbers are not finite, they have the same bits on all
  /// ranks of the member, and all fail together.
  template <class Step>
  static auto unless_non_finite(const Step& step) {
    try {
      return step();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kNonFinite) throw FailedTogether(error);
      throw;
    }
  }
  /// Changes one bit of the first of these tensors.
  static void make_wrong(const std::vector<checkpoint::StateItem>& items);

  const RunOptions& options_;
  Run& run_;
  const MemberRanks& ranks_;
  StateTensors tensors_;
  RunState state_;
  const OnCommit on_commit_;
  double share_ = 1;
  double data_wait_s_ = 0;

 private:
  std::string self_;
  Digest committed_{};
  std::atomic<bool> has_entered_{false};
  std::mutex writing_;
};

}  // namespace shoal::train
