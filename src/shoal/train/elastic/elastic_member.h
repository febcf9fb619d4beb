#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collective/elastic/elastic_group.h"
#include "shoal/collective/membership/member.h"
#include "shoal/train/config/lineage.h"
#include "shoal/train/elastic/member_columns.h"
#include "shoal/train/elastic/member_group.h"
#include "shoal/train/elastic/member_ranks.h"
#include "shoal/train/elastic/member_work.h"
#include "shoal/train/run.h"
#include "shoal/train/trainer.h"
#include "shoal/wire/address.h"

namespace shoal::train {

/// The part of this rank's member in the elastic group of a job: the member begins the group or
/// joins it, trains with the others, and writes down what was committed. MemberWork has what it
/// trains. Of the ranks of a member the first one, the leader, acts in the group, and all call the
/// same functions; docs/concepts/elastic.md has what is promised. One thread.
class ElasticMember {
 public:
  /// Joins the group that elastic.join names, or that this run directory was last in, or else
  /// begins one. Where it joins, the run then goes on from where the group is, in `run.record`.
  /// `run` is built. Throws as ElasticGroup, Error(config) where the group trains another job, or
  /// is behind the checkpoint of this run, and Error(peer_lost) where it cannot be known whether
  /// the last group lives. Both must outlive this. This, `wait_for_members` and `step` throw
  /// StoppedWhileWaiting where the leader is asked to stop.
  ElasticMember(const RunOptions& options, Run& run);
  ElasticMember(const ElasticMember&) = delete;
  ElasticMember& operator=(const ElasticMember&) = delete;

  /// Waits until elastic.members are there.
  void wait_for_members();
  /// Carries out the step at `run.record`, with the others where that is due, and writes to the
  /// lineage what is committed. `input` needs no labels. Throws as ElasticGroup::step and
  /// TrainingStep::run.
  StepResult step(const StepInput& input);
  /// Leaves, so that the others go on at once.
  void leave();
  /// Returns true where all ranks of this member have thrown the last error, with the state of the
  /// last commit at hand: they may save it. Otherwise one has failed by itself.
  bool has_failed_together() const { return side_->has_failed_together(); }

  /// Returns what `run.record` becomes behind the last `step`.
  RunRecord record_after() const { return work_->record_after(); }
  /// Returns whether `run.record` and the parameters are those of the last commit.
  bool is_at_commit() const { return work_->is_at_commit(); }
  std::int64_t members() const { return members_; }  ///< of the last commit
  /// Return the part of its samples that this member has trained in the last step, and the seconds
  /// in which it has read them.
  double share() const { return work_->share(); }
  double data_wait_s() const { return work_->data_wait_s(); }

  /// Returns what people should know since the last call: who has come and gone.
  std::vector<std::string> take_notes();
  /// Returns where another member is found, for a process that comes back; empty: there is none.
  std::string other_member() const;

  /// Makes the state and `run.record` those of the last step that was committed.
  void take_back() { work_->take_back(); }
  /// Throws Error(data) where the state is not the one that all had behind the last step that was
  /// committed. Call it behind `take_back`.
  void check_state() const { work_->check_state(); }
  /// As long as the caller has it, no joiner is given the state, whose tensors may change.
  std::unique_lock<std::mutex> hold_state() { return work_->hold_state(); }

 private:
  std::unique_ptr<MemberWork> make_work();
  MemberColumns::Options column_options() const;
  void check_one_host() const;
  MemberRanks::Bytes enter();
  void find_group();
  void begin();
  void join(const std::vector<wire::Endpoint>& contacts,
            collective::elastic::ElasticGroup::Options options);
  void come_back(const std::vector<wire::Endpoint>& former);
  Error group_is_silent(const std::vector<wire::Endpoint>& there) const;
  void keep_addresses(const collective::elastic::View& view) const;
  collective::elastic::ElasticGroup::Options group_options();
  void note_members(const collective::elastic::View& view);
  void write_address() const;

  const RunOptions& options_;
  const ElasticSection& section_;
  Run& run_;
  const MemberRanks ranks_;
  const collective::elastic::LetterCarrier::Options network_;
  std::unique_ptr<MemberWork> work_;
  MemberColumns columns_;
  const MemberStateAccess state_;
  LeadingSide* leading_ = nullptr;                            ///< on the leader
  FollowingSide* following_ = nullptr;                        ///< on the others
  std::unique_ptr<MemberGroup> side_;                         ///< one of these
  std::unique_ptr<collective::elastic::ElasticGroup> group_;  ///< on the leader
  std::optional<LineageFile> lineage_;
  bool has_begun_ = false;   ///< the group, which others join
  bool has_joined_ = false;  ///< one that others had begun
  std::int64_t members_ = 1;
  std::vector<collective::membership::MemberId> known_;  ///< of the last commit
  std::vector<std::string> notes_;
};

}  // namespace shoal::train
