#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/comm/group.h"
#include "shoal/nn/module.h"
#include "shoal/optim/loss_scale.h"
#include "shoal/optim/optimizer.h"
#include "shoal/optim/undo_log.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/pipeline/pipeline.h"
#include "shoal/parallel/pipeline/tied_weights.h"
#include "shoal/train/data_source.h"
#include "shoal/train/router_balance.h"

namespace shoal::train {

/// The time limit of an operation that is begun in one step and waited for in another: steps may
/// take long, and whoever waits for it has a limit of its own.
inline constexpr Duration kInAStep = std::chrono::hours(24);

/// The samples of one step on this rank, cut into micro-batches.
struct RankBatch {
  std::vector<Batch> micro_batches;
  /// Number of the first sample, counted within the global batch of the step.
  std::int64_t first_sample = 0;
};

/// Returns this rank's part of the global batch that begins with training sample `first`: rank r
/// runs the r-th stretch of it, micro-batch after micro-batch; `rank` counts data-parallel ranks
/// (BatchShare). Any number of ranks and any micro-batch train the same samples.
RankBatch rank_batch(const DataSource& data, std::int64_t first, const BatchPlan& plan, int rank);

/// An injected fault of a step: its loss is not a number, the gradient of one rank is infinite, or
/// (ElasticMember) the state of one member has a wrong bit.
enum class Poison { kNone, kLoss, kGradient, kState };

struct StepInput {
  std::int64_t step = 0;  ///< counted from 0: names the step's random numbers
  double learning_rate = 0;
  double clip_norm = 0;  ///< 0: no clipping
  double labels = 0;     ///< valid labels of the global batch, over all ranks; of one member's part
  Poison poison = Poison::kNone;
  /// With post_validate: the step may end before the norm over all ranks is known. In a member: it
  /// may end before the loss of the others is.
  bool may_end_early = false;
};

struct StepResult {
  /// False: the step ended early, and `validated` will tell the rest.
  bool validated = true;
  double loss = 0;  ///< mean over the valid labels of the global batch; the mean of the members'
  /// Norm before clipping, without the loss scale; infinite in a step that was skipped. That of
  /// this rank's member.
  double grad_norm = 0;
  std::optional<double> loss_scale{};
  bool skipped = false;  ///< the gradient overflowed: no update, and the loss scale is halved
};

/// Loss and gradients of the micro-batches of a step, of one process or summed over several.
struct StepSum {
  double loss = 0;  ///< sum over the valid labels, divided by the labels of the global batch
  /// They belong to the trained ranges that this rank owns, and carry the loss scale; undefined
  /// where no micro-batch uses the parameter.
  std::vector<at::Tensor> gradients;
};

/// Counts the valid labels of the micro-batches that this rank reports; for a regression, their
/// values.
double count_labels(const std::vector<Batch>& micro_batches,
                    const parallel::BatchShare& share = {});

/// Executes steps: forward and backward of every micro-batch, gradients summed over `group` as they
/// become ready, clipping, the optimizer's update.
///
/// Every loss is a sum divided by the global count of valid labels and gradients reduce by sum, so
/// that any split of the same samples gives the same update up to rounding. With a loss scale, a
/// gradient that is not finite skips the update: all ranks see the same norm. Throws
/// Error(non-finite) with rank and step when the loss of a micro-batch or the gradient's norm is
/// not finite; parameters are then as before the step.
class TrainingStep {
 public:
  /// `scale` multiplies the loss of every step and is adapted to its gradient; null: there is none.
  /// `share` is this rank's part of a batch. All references must outlive this.
  TrainingStep(nn::Model& model, optim::Optimizer& optimizer,
               parallel::GradientReduction& reduction, comm::Group group, Key key,
               optim::LossScale* scale = nullptr, const parallel::BatchShare& share = {});

  StepResult run(const RankBatch& batch, const StepInput& input) {
    return update(accumulate(batch, input), input);
  }
  /// The first half of `run`: forward and backward. The gradients may be those of the model, which
  /// the second half clears. Without micro-batches, on all ranks, it returns zero and no gradients.
  StepSum accumulate(const RankBatch& batch, const StepInput& input);
  /// The second half of `run`: the norm, clipping and the update, with the sum of all parts of the
  /// step.
  StepResult update(StepSum sum, const StepInput& input);

  /// Returns the pipeline that runs so many micro-batches.
  using PipelineOf = std::function<parallel::Pipeline&(int micro_batches)>;
  /// From now on micro-batches go through a pipeline of several ranks, of which this one has some
  /// stages; its events begin and end the reduction's passes (parallel::pipeline_events). It and
  /// `tied` must outlive this. Without the call the whole model is the only stage, of a table of
  /// one rank.
  void run_through(PipelineOf pipeline_of, const parallel::TiedWeights& tied);
  /// The same with one pipeline, whose table has the micro-batches of every step.
  void run_through(parallel::Pipeline& pipeline, const parallel::TiedWeights& tied) {
    run_through([&pipeline](int) -> parallel::Pipeline& { return pipeline; }, tied);
  }

  /// From now on a step whose input allows it does not wait for the other ranks to know the norm of
  /// the gradient (Qi et al., "Zero Bubble Pipeline Parallelism", 2024, post-validation): it
  /// updates as if the norm were finite and not clipped, and the next step validates that before
  /// its first loss or gradient, in the event `confirm` of the pipeline. A wrong update is taken
  /// back, made as it should have been, and the forward passes that have begun run again: bits are
  /// those of steps that wait. After a step that was clipped the next one waits. Needs run_through
  /// and no loss scale, and takes as much memory as the parameters and the state of the optimizer.
  void post_validate();
  /// Returns the result of the step that ended early; validates it where the next step has not done
  /// so. Collective.
  StepResult validated();
  /// Is called by the pipeline: validates the step before this one. Returns false when its update
  /// was wrong. Throws Error(non-finite) as `run` does.
  bool confirm();

  /// From now on this rank belongs to one of `members` members, which train by themselves: `member`
  /// are its ranks, over which gradients are summed, clipped and scaled. All ranks together only
  /// sum the loss, which is the mean of the members', and no step that may end early waits for it.
  /// A wait for the loss lasts `longest_wait` at most.
  void train_in_member(comm::Group member, int members, Duration longest_wait);

  /// From now on the head computes its logits twice (nn::Context::recompute_logits). No bit
  /// changes, but for the last ones of a matrix that embedding and head share on one rank: its
  /// gradients are then summed in another order.
  void recompute_logits() { recompute_logits_ = true; }

  /// Sets a function that is called before every action of the table of one rank, where steps go
  /// through no pipeline of several.
  void before_actions(std::function<void(const schedule::Action&)> call) {
    before_actions_ = std::move(call);
  }

  /// From now on steps count the choices of routers and move their biases. It must outlive this.
  void balance_routers(RouterBalance& balance) { balance_ = &balance; }

  /// Sets a function that is called in every step, on all ranks, when gradients are complete and
  /// before parameters and the optimizer's state change.
  void before_update(std::function<void()> call) { before_update_ = std::move(call); }

  /// Is called by the pipeline: refuses the loss of a micro-batch that is not finite, before its
  /// gradient.
  void pipeline_loss(int micro_batch, double loss) const {
    check_loss(loss / scale(), micro_batch);
  }

 private:
  /// Runs all micro-batches, and returns this rank's part of the loss.
  double run_micro_batches(const RankBatch& batch, const StepInput& input);
  /// Returns the pipeline of the step's micro-batches: that of run_through, or one of this rank
  /// alone.
  parallel::Pipeline& pipeline_of(int micro_batches);
  /// Returns this rank's columns of a micro-batch, and all that the model must know of them.
  parallel::MicroBatch micro_batch_of(const Batch& batch, std::int64_t index,
                                      std::int64_t first_sample, const StepInput& input) const;
  /// Throws Error(non-finite) unless the loss of a micro-batch is finite.
  void check_loss(double value, std::int64_t index) const;
  /// Returns the sums of two numbers over the ranks that train one model, with the same bits on
  /// each. Collective.
  std::pair<double, double> sum_over_ranks(double first, double second) const;
  /// Calls the function of `before_update`.
  void announce_update() const;
  /// Lets the optimizer write, while no other rank reads what it owns; `balances`: biases of
  /// routers move too.
  void write_update(const std::vector<at::Tensor>& gradients, double learning_rate, double factor,
                    bool balances = true);
  /// An update whose norm is on its way.
  struct EarlyUpdate {
    StepInput input;
    std::vector<at::Tensor> gradients;
    at::Tensor sums;  ///< loss and squares
    comm::Work work;
  };

  /// A step whose loss is on its way.
  struct PendingLoss {
    StepResult result;
    at::Tensor loss;  ///< summed over all members
    comm::Work work;
  };
  /// Takes the loss of the members: starts their sum, and waits for it unless the step may end
  /// early.
  void sum_loss(double local_loss, const StepInput& input, StepResult& result);
  /// Waits for the loss that is on its way.
  StepResult arrived_loss();

  /// Starts the exchange of the norm, and updates without it.
  StepResult update_early(double local_loss, std::vector<at::Tensor> gradients,
                          const StepInput& input);
  /// Waits for the gradients of this step, and returns what this rank updates with.
  std::vector<at::Tensor> finish_gradients();
  /// Returns the sum of squares of what this rank counts of the gradient.
  double own_squares(const std::vector<at::Tensor>& gradients) const;
  /// Lets the optimizer update what this rank owns.
  void step_optimizer(const std::vector<at::Tensor>& gradients, double learning_rate,
                      double factor);
  /// Returns true when the optimizer may use gradients of this norm, which still carry the scale.
  bool accepted(double scaled_norm, const StepInput& input);
  double scale() const { return scale_ ? scale_->scale() : 1; }

  nn::Model& model_;
  optim::Optimizer& optimizer_;
  parallel::GradientReduction& reduction_;
  comm::Group group_;
  comm::Group member_;  ///< the ranks that train one model
  int members_ = 1;
  Duration longest_wait_{};
  Key key_;
  std::function<void()> before_update_;
  std::function<void(const schedule::Action&)> before_actions_;
  optim::LossScale* scale_;
  parallel::BatchShare share_;
  std::vector<parallel::OwnedRange> owned_;
  PipelineOf pipeline_of_;                     ///< of several ranks
  std::optional<parallel::Pipeline> in_turn_;  ///< of this rank alone, with the whole model
  const parallel::TiedWeights* tied_ = nullptr;
  RouterBalance* balance_ = nullptr;
  bool recompute_logits_ = false;
  std::optional<optim::UndoLog> undo_;  ///< present with post_validate
  std::optional<EarlyUpdate> early_;    ///< waits for its validation
  std::optional<PendingLoss> pending_;  ///< of a step in a member that ended early
  std::optional<StepResult>
      confirmed_;          ///< of an early update that was validated, until it is asked for
  bool clipped_ = false;   ///< the last norm was above the limit
  std::int64_t step_ = 0;  ///< that runs
};

/// Returns the slices that an optimizer of the whole model updates: every parameter that is
/// trained, in the model's order.
std::vector<optim::Slice> slices_of(const nn::Module& model);
/// Returns the slices that an optimizer updates where this rank owns a part of the model.
std::vector<optim::Slice> slices_of(const std::vector<parallel::OwnedRange>& owned);

}  // namespace shoal::train
