#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/collective/elastic/elastic_group.h"
#include "shoal/collective/membership/member.h"
#include "shoal/optim/undo_log.h"
#include "shoal/train/config/lineage.h"
#include "shoal/train/elastic/gradient_sum.h"
#include "shoal/train/elastic/run_state.h"
#include "shoal/train/run.h"
#include "shoal/train/trainer.h"
#include "shoal/wire/address.h"

namespace shoal::train {

/// This process's part in the elastic group of a job: steps that become true on all members or on
/// none. An attempt at a step computes the gradients of this member's micro-batches, adds up those
/// of all, and updates; what that has changed is taken back where the others do not commit it.
/// docs/concepts/elastic.md has what is promised. One thread.
class ElasticMember {
 public:
  /// Joins the group that elastic.join names, or that this run directory was last in, or else
  /// begins one. Where it joins, the run then goes on from where the group is, in `run.record`.
  /// `run` is built. Throws as ElasticGroup, Error(config) where the group trains another job, or
  /// is behind the checkpoint of this run, and Error(peer_lost) where it cannot be known whether
  /// the last group lives. Both must outlive this.
  ElasticMember(const RunOptions& options, Run& run);
  ElasticMember(const ElasticMember&) = delete;
  ElasticMember& operator=(const ElasticMember&) = delete;

  /// Waits until elastic.members are there.
  void wait_for_members();
  /// Carries out the step at `run.record` with the others, and writes it to the lineage. `input`
  /// needs no labels. Throws as ElasticGroup::step and TrainingStep::run.
  StepResult step(const StepInput& input);
  /// Leaves, so that the others go on at once.
  void leave();

  // These describe the last step.

  std::int64_t members() const { return members_; }
  /// The part of its samples that this member has trained.
  double share() const { return share_; }
  /// Seconds in which this member has read them.
  double data_wait_s() const { return data_wait_s_; }

  /// Returns what people should know since the last call: who has come and gone.
  std::vector<std::string> take_notes();
  /// Returns where another member is found, for a process that comes back; empty: there is none.
  std::string other_member() const;

  /// Makes the state that of the last step that was committed.
  void take_back();
  /// Throws Error(data) where the state is not the one that all had behind the last step that was
  /// committed. Call it behind `take_back`.
  void check_state() const;

 private:
  /// Each member says this of its part of a step before all go on.
  struct Part {
    double labels = 0;
    double threads = 0;
  };
  void enter();
  void begin();
  void join(const std::vector<wire::Endpoint>& contacts,
            collective::elastic::ElasticGroup::Options options);
  void come_back(const std::vector<wire::Endpoint>& former);
  Error group_is_silent(const std::vector<wire::Endpoint>& there) const;
  void keep_addresses(const collective::elastic::View& view) const;
  collective::elastic::ElasticGroup::Options group_options();
  RunRecord record() const;
  std::vector<std::byte> write();
  void read(std::span<const std::byte> bytes);
  collective::elastic::Attempt attempt(collective::Communicator& group,
                                       const collective::elastic::Roster& roster, StepInput input);
  bool fault_at(const char* place) const;
  void make_state_wrong();
  void note_members(const collective::elastic::View& view);
  void write_lineage(const collective::elastic::StepResult& committed);
  void write_address() const;

  const RunOptions& options_;
  const ElasticSection& section_;
  Run& run_;
  RunState state_;
  optim::UndoLog undo_;
  GradientSum sum_;
  std::unique_ptr<collective::elastic::ElasticGroup> group_;
  std::optional<LineageFile> lineage_;
  std::string before_;  ///< the digest of the last committed state, as hex digits

  bool has_begun_ = false;  ///< the group, which others join

  /// An attempt has changed the state, and is not committed.
  bool tried_ = false;
  std::optional<optim::LossScale::State> scale_before_;
  StepResult result_;
  std::vector<Part> parts_;
  std::int64_t members_ = 1;
  double share_ = 1;
  double data_wait_s_ = 0;
  std::vector<collective::membership::MemberId> known_;  ///< of the last step
  std::vector<std::string> notes_;
};

}  // namespace shoal::train
