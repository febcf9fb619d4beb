#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "shoal/comm/group.h"
#include "shoal/nn/context.h"
#include "shoal/parallel/pipeline/cut_stages.h"
#include "shoal/parallel/pipeline/messages.h"
#include "shoal/parallel/pipeline/stage_pass.h"
#include "shoal/schedule/action.h"

namespace shoal::parallel {

/// One micro-batch of a step. Every rank of a pipeline has it: contexts are not sent, because each
/// rank makes them from the same global indices.
struct MicroBatch {
  at::Tensor
      input;  ///< tokens [B, T] or features [B, inputs]; ranks after the first read its shape
  /// With labels, from which the last stage computes the loss. The sink for extra losses is the
  /// pipeline's own.
  nn::Context context;
  double loss_gradient = 1;  ///< the gradient of the micro-batch's losses
};

/// Calls of a pipeline to its caller while it runs a step. Empty functions are not called; what
/// they throw ends the step.
struct PipelineEvents {
  /// Before the first action of the step.
  std::function<void()> begin;
  /// Before each action, messages included.
  std::function<void(const schedule::Action&)> action;
  /// When this rank has computed a loss, before its gradient: that of a micro-batch, in the last
  /// stage, and the sum of what layers of a stage have added to it.
  std::function<void(int micro_batch, double loss)> loss;
  /// Before the last action that computes gradients of a stage: a parameter of it that becomes
  /// ready from now on has the gradient of the whole step, unless another stage of this rank uses
  /// it too.
  std::function<void(int stage)> finishing;
  /// After that action: the gradients of the stage are complete on this rank, and may be reduced
  /// over the ranks that hold it while other stages still compute.
  std::function<void(int stage)> let_go;
  /// Called once in each step of training, before the first loss or gradient is computed or
  /// received; what layers of earlier stages add to a loss is told behind it. Returns false when
  /// parameters have changed since the step began: stages that were gathered are then released and
  /// gathered again, and the forward passes run again. It must return the same on every rank. No
  /// gather is in flight while it runs.
  std::function<bool()> confirm;
  /// Called when the table gathers a stage, before an action that reads its parameters, and when
  /// the table releases it.
  std::function<void(int stage)> gather;
  std::function<void(int stage)> gathered;
  std::function<void(int stage)> release;
};

/// Carries out the table of a pipeline schedule: any table that `schedule::check` accepts, one of
/// one rank (F0 B0 F1 B1 ...) included.
///
/// Losses and gradients have the same bits for every table, and are those of one rank that runs the
/// same micro-batches in order: each stage adds its micro-batches up in the order of the table,
/// which is 0, 1, 2 ... in all generated ones. (A weight that several stages use is summed in
/// another order; see TiedWeights for copies on several ranks.)
///
/// Sends never block, receives are posted ahead, and every wait ends after the timeout of the group
/// at the latest. Messages go on between units of a forward pass, and whenever a gradient is ready.
/// As with every collective, a rank that throws must abort the group, or the others wait until
/// then; after an error the pipeline cannot be used again. Not thread-safe.
class Pipeline {
 public:
  /// `group`: the ranks of the pipeline, those of the table in order. `stages`: what `cut_stages`
  /// left on this rank; its parameters must outlive this object. `type` is that of the activations
  /// between stages. Throws Error(usage) when the table is not legal or does not fit the rest.
  Pipeline(comm::Group group, schedule::Schedule table, Stages stages, PipelineEvents events = {},
           at::ScalarType type = at::kFloat);
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Runs one step: `batch` has one entry for each micro-batch of the table. Gradients accumulate
  /// in the parameters. Returns this rank's part of the loss, which is a sum over all ranks: the
  /// losses of all micro-batches where the last stage is, and what other losses this rank's stages
  /// add.
  double run(const std::vector<MicroBatch>& batch);

  /// Runs the forward passes of the same table, without recording and in the contexts of `batch`.
  /// Returns this rank's part of the loss, as `run` does. Where the table gathers stages, each is
  /// gathered and released here too, and ranks that hold the same stages call this equally often.
  /// No other event is called.
  double evaluate(const std::vector<MicroBatch>& batch);

  const schedule::Schedule& table() const { return training_.table; }
  const Stages& stages() const { return stages_; }
  /// Returns the number of micro-batches, over all stages of this rank, that hold activations.
  std::size_t live_passes() const { return passes_.size(); }

 private:
  /// Stage and micro-batch.
  using Pass = std::pair<int, int>;

  /// A table, and the messages of one rank in it.
  struct Program {
    Program(const comm::Group& group, schedule::Schedule of, at::ScalarType type)
        : table(std::move(of)), messages(group, table, type) {}
    schedule::Schedule table;
    Messages messages;  ///< refers to `table`
  };

  void advance_in_backward();
  bool confirm();
  void take_back();
  void begin(Program& program, const std::vector<MicroBatch>& batch);
  double finish(Program& program);
  void move_parameters(const schedule::Action& action);
  void carry_out(Messages& messages, const schedule::Action& action, const MicroBatch& batch);
  void forward(const schedule::Action& action, const MicroBatch& batch);
  void backward(const schedule::Action& action);
  void check_output(const schedule::Action& action, const at::Tensor& output,
                    const MicroBatch& batch) const;
  const Stage& stage(int number) const;
  bool is_local(int stage) const;

  std::shared_ptr<int> alive_ = std::make_shared<int>();  ///< listeners outlive this
  comm::Group group_;
  Stages stages_;
  PipelineEvents events_;
  at::ScalarType type_;
  Program training_;
  Program evaluation_;
  std::size_t repeatable_;               ///< this rank's actions that can run again
  std::map<int, std::size_t> last_use_;  ///< by stage: its last computation in this rank's list
  std::map<Pass, std::unique_ptr<StagePass>> passes_;
  std::map<Pass, at::Tensor> inputs_;     ///< have arrived, or come from another stage of this rank
  std::map<Pass, at::Tensor> gradients_;  ///< of outputs, likewise
  std::map<Pass, at::Tensor> outgoing_activations_, outgoing_gradients_;  ///< until they are sent
  std::set<int> gathered_;      ///< stages that the table has gathered and not released
  std::set<int> arriving_;      ///< those among them whose gather was not waited for
  std::vector<double> losses_;  ///< by micro-batch: this rank's part
  bool confirmed_ = true;
  std::vector<std::pair<int, double>> untold_losses_;  ///< of passes that may run again
  bool failed_ = false;
};

}  // namespace shoal::parallel
