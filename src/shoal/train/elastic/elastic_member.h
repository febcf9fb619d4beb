#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collective/elastic/elastic_group.h"
#include "shoal/collective/membership/member.h"
#include "shoal/train/config/lineage.h"
#include "shoal/train/elastic/member_work.h"
#include "shoal/train/run.h"
#include "shoal/train/trainer.h"
#include "shoal/wire/address.h"

namespace shoal::train {

/// A member was asked to stop while it waited for others: in what it waited for it had no part yet.
class StoppedWhileWaiting final : public std::exception {
 public:
  explicit StoppedWhileWaiting(int asked) : signal(asked) {}
  const char* what() const noexcept override { return "asked to stop while others are awaited"; }
  int signal;
};

/// This process's part in the elastic group of a job: it begins the group or joins it, trains with
/// the others, and writes down what was committed. MemberWork has what it trains.
/// docs/concepts/elastic.md has what is promised. One thread.
class ElasticMember {
 public:
  /// Joins the group that elastic.join names, or that this run directory was last in, or else
  /// begins one. Where it joins, the run then goes on from where the group is, in `run.record`.
  /// `run` is built. Throws as ElasticGroup, Error(config) where the group trains another job, or
  /// is behind the checkpoint of this run, and Error(peer_lost) where it cannot be known whether
  /// the last group lives. Both must outlive this. This, `wait_for_members` and `step` throw
  /// StoppedWhileWaiting where `options` ask to stop.
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
  void enter();
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
  std::unique_ptr<MemberWork> work_;
  std::unique_ptr<collective::elastic::ElasticGroup> group_;
  std::optional<LineageFile> lineage_;
  bool has_begun_ = false;  ///< the group, which others join
  std::int64_t members_ = 1;
  std::vector<collective::membership::MemberId> known_;  ///< of the last commit
  std::vector<std::string> notes_;
};

}  // namespace shoal::train
