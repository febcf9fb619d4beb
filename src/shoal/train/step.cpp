#include "shoal/train/step.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shoal/base/check.h"
#include "shoal/base/span_recorder.h"
#include "shoal/optim/clipping.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "shoal/schedule/generators.h"

namespace shoal::train {

RankBatch rank_batch(const DataSource& data, std::int64_t first, const BatchPlan& plan, int rank) {
  RankBatch batch;
  // Ranks take consecutive stretches of the global batch, cut into micro-batches: sample numbers,
  // and with them dropout masks, do not depend on the cut.
  batch.first_sample = rank * plan.accumulation * plan.micro_batch;
  for (std::int64_t i = 0; i < plan.accumulation; ++i) {
    batch.micro_batches.push_back(
        data.training(first + batch.first_sample + i * plan.micro_batch, plan.micro_batch));
  }
  return batch;
}

double count_labels(const std::vector<Batch>& micro_batches, const parallel::BatchShare& share) {
  double count = 0;
  for (const Batch& batch : micro_batches) {
    const at::Tensor labels = share.counted(batch.labels);
    count += static_cast<double>(labels.is_floating_point()
                                     ? labels.numel()
                                     : labels.ne(kIgnoredLabel).sum().item<std::int64_t>());
  }
  return count;
}

std::vector<optim::Slice> slices_of(const nn::Module& model) {
  std::vector<optim::Slice> slices;
  for (const auto& parameter : model.parameters()) {
    if (parameter->requires_grad())
      slices.push_back({parameter->name(), parameter->tensor(), parameter->decay()});
  }
  return slices;
}

namespace {

double bytes_of(const std::vector<at::Tensor>& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

/// The elements of a box that is not the whole parameter lie row by row in it: only rows, or only
/// columns, are cut.
optim::Place place_of(const parallel::OwnedRange& range) {
  const std::vector<std::int64_t>& shape = range.parameter->global_shape();
  const mesh::Box& box = range.parameter->box();
  if (box.count() == range.parameter->global_count() || shape.empty()) return {range.begin};
  const std::size_t last = shape.size() - 1;
  optim::Place place{.begin = range.begin,
                     .width = box.end[last] - box.begin[last],
                     .stride = shape[last],
                     .first = 0};
  for (std::size_t d = 0; d < shape.size(); ++d)
    place.first = place.first * shape[d] + box.begin[d];
  return place;
}

}  // namespace

std::vector<optim::Slice> slices_of(const std::vector<parallel::OwnedRange>& owned) {
  std::vector<optim::Slice> slices;
  for (const parallel::OwnedRange& range : owned) {
    if (range.parameter->requires_grad()) {
      slices.push_back(
          {range.parameter->name(), range.values, range.parameter->decay(), place_of(range)});
    }
  }
  return slices;
}

TrainingStep::TrainingStep(nn::Model& model, optim::Optimizer& optimizer,
                           parallel::GradientReduction& reduction, comm::Group group, Key key,
                           optim::LossScale* scale, const parallel::BatchShare& share)
    : model_(model),
      optimizer_(optimizer),
      reduction_(reduction),
      group_(std::move(group)),
      member_(group_),
      key_(key),
      scale_(scale),
      share_(share),
      owned_(reduction.owned()) {}

void TrainingStep::run_through(PipelineOf pipeline_of, const parallel::TiedWeights& tied) {
  pipeline_of_ = std::move(pipeline_of);
  tied_ = &tied;
  owned_ = tied.mark(std::move(owned_));
}

StepSum TrainingStep::accumulate(const RankBatch& batch, const StepInput& input) {
  step_ = input.step;
  StepSum sum;
  if (batch.micro_batches.empty()) {
    // The same on all ranks, so that none waits for a reduction.
    sum.gradients.resize(optimizer_.slices().size());
    return sum;
  }
  sum.loss = run_micro_batches(batch, input);
  sum.gradients = finish_gradients();
  return sum;
}

StepResult TrainingStep::update(StepSum sum, const StepInput& input) {
  StepResult result;
  // Each rank has summed its own labels' losses over the global count: the sum is the mean over
  // all. Of the gradient it squares the part that nobody else counts. One exchange for both, in
  // which every rank takes part whatever it holds: all run as many steps.
  if (undo_ && input.may_end_early && !clipped_)
    return update_early(sum.loss, std::move(sum.gradients), input);
  const auto [loss, squares] = sum_over_ranks(sum.loss, own_squares(sum.gradients));
  result.loss = loss;

  // Gradients still carry the loss scale; the factor takes it off, together with clipping, while
  // the optimizer reads them.
  const double factor = 1 / scale();
  const double scaled_norm = std::sqrt(squares);
  result.grad_norm = scaled_norm * factor;
  if (scale_) result.loss_scale = scale();
  // The norm has the same bits on all ranks, so all skip, or all throw.
  result.skipped = !accepted(scaled_norm, input);
  // In skipped steps too: it is collective while a checkpoint is being written.
  announce_update();
  if (result.skipped) {
    result.grad_norm = std::numeric_limits<double>::infinity();
    if (balance_) balance_->drop();
  } else {
    const double clip = optim::clip_factor(result.grad_norm, input.clip_norm);
    clipped_ = clip != 1;
    write_update(sum.gradients, input.learning_rate, factor * clip);
  }
  {
    const ScopedSpan span(SpanKind::kOptimizer, "clear gradients");
    model_.clear_gradients();
  }
  if (members_ > 1) sum_loss(sum.loss, input, result);
  return result;
}

void TrainingStep::train_in_member(comm::Group member, int members, Duration longest_wait) {
  SHOAL_USER_CHECK(!undo_, "train", "post-validation is for ranks that train one model");
  member_ = std::move(member);
  members_ = members;
  longest_wait_ = longest_wait;
}

void TrainingStep::sum_loss(double local_loss, const StepInput& input, StepResult& result) {
  if (pending_) confirmed_ = arrived_loss();
  PendingLoss& pending = pending_.emplace(PendingLoss{result, at::empty({1}, at::kDouble), {}});
  *pending.loss.data_ptr<double>() = local_loss;
  // It is waited for in the next step, however long that takes.
  pending.work = group_.all_reduce(pending.loss, {.async = true, .timeout = kInAStep});
  if (!input.may_end_early) {
    result = arrived_loss();
    return;
  }
  result.validated = false;
}

StepResult TrainingStep::arrived_loss() {
  PendingLoss pending = std::move(*pending_);
  pending_.reset();
  pending.work.wait(Deadline::in(longest_wait_));
  pending.result.loss = *pending.loss.const_data_ptr<double>() / members_;
  return pending.result;
}

void TrainingStep::announce_update() const {
  if (!before_update_) return;
  const ScopedSpan span(SpanKind::kCheckpoint, "checkpoint", "before update");
  before_update_();
}

void TrainingStep::write_update(const std::vector<at::Tensor>& gradients, double learning_rate,
                                double factor, bool balances) {
  // Ranks may share one copy of the parameters: none may still read while owners write, and none
  // may read on before all have written.
  reduction_.begin_update();
  step_optimizer(gradients, learning_rate, factor);
  if (balance_ && balances) balance_->update();
  reduction_.end_update();
}

StepResult TrainingStep::update_early(double local_loss, std::vector<at::Tensor> gradients,
                                      const StepInput& input) {
  EarlyUpdate& early = early_.emplace();
  early.input = input;
  early.sums = at::empty({2}, at::kDouble);
  early.sums.data_ptr<double>()[0] = local_loss;
  early.sums.data_ptr<double>()[1] = own_squares(gradients);
  early.work = group_.all_reduce(early.sums, {.async = true});
  // A wrong update is made again from these gradients: they are cleared when it is validated,
  // before the first backward pass of the next step.
  early.gradients = std::move(gradients);
  announce_update();
  {
    const ScopedSpan span(SpanKind::kOptimizer, "keep old values");
    undo_->record();
  }
  write_update(early.gradients, input.learning_rate, 1);
  StepResult result;
  result.validated = false;
  return result;
}

bool TrainingStep::confirm() {
  if (!early_) return true;
  EarlyUpdate early = std::move(*early_);
  early_.reset();
  early.work.order();
  StepResult& result = confirmed_.emplace();
  result.loss = early.sums.const_data_ptr<double>()[0];
  result.grad_norm = std::sqrt(early.sums.const_data_ptr<double>()[1]);
  const double clip = optim::clip_factor(result.grad_norm, early.input.clip_norm);
  clipped_ = clip != 1;
  const bool finite = std::isfinite(result.grad_norm);
  const bool right = finite && !clipped_;
  if (!right) {
    const ScopedSpan span(SpanKind::kOptimizer, "take back the update");
    // Other ranks may still run forward passes that read the parameters that this one owns.
    reduction_.begin_update();
    undo_->restore();
    // Biases of routers follow the choices of the step, whatever its norm. What forward passes of
    // this step have counted, they count again.
    if (balance_ && !finite) balance_->take_back();
    if (balance_) balance_->drop();
    reduction_.end_update();
    // Throws where it is not finite, with the parameters of before the step.
    accepted(result.grad_norm, early.input);
    write_update(early.gradients, early.input.learning_rate, clip, false);
  }
  model_.clear_gradients();
  return right;
}

void TrainingStep::post_validate() {
  SHOAL_USER_CHECK(pipeline_of_ && !scale_ && members_ == 1, "train",
                   "post-validation is for pipelines without a loss scale, which follows from the "
                   "norm of every step");
  undo_.emplace(optimizer_);
}

StepResult TrainingStep::validated() {
  if (!confirmed_ && pending_) return arrived_loss();
  if (!confirmed_) confirm();
  SHOAL_CHECK(confirmed_, "no step has ended early");
  return *std::exchange(confirmed_, std::nullopt);
}

std::vector<at::Tensor> TrainingStep::finish_gradients() {
  const ScopedSpan span(SpanKind::kBackward, "finish gradients");
  reduction_.finish();
  std::vector<at::Tensor> gradients = reduction_.gradients();
  if (tied_) tied_->reduce(owned_, gradients);
  return gradients;
}

double TrainingStep::own_squares(const std::vector<at::Tensor>& gradients) const {
  const ScopedSpan span(SpanKind::kOptimizer, "gradient norm");
  const std::vector<at::Tensor> parts = parallel::counted_parts(owned_, gradients);
  if (span.recorded()) span.work(0, bytes_of(parts));
  return optim::sum_of_squares(parts);
}

void TrainingStep::step_optimizer(const std::vector<at::Tensor>& gradients, double learning_rate,
                                  double factor) {
  const ScopedSpan span(SpanKind::kOptimizer, "update");
  if (span.recorded()) {
    double bytes = bytes_of(gradients);
    // Read and written.
    for (const optim::Slice& slice : optimizer_.slices())
      bytes += 2 * static_cast<double>(slice.parameter.nbytes());
    for (const optim::State& state : optimizer_.states())
      bytes += 2 * static_cast<double>(state.tensor.nbytes());
    span.work(0, bytes);
  }
  optimizer_.step(gradients, learning_rate, factor);
}

std::pair<double, double> TrainingStep::sum_over_ranks(double first, double second) const {
  const at::Tensor sums = at::empty({2}, at::kDouble);
  auto* values = sums.data_ptr<double>();
  values[0] = first;
  values[1] = second;
  member_.all_reduce(sums);
  return {values[0], values[1]};
}

bool TrainingStep::accepted(double scaled_norm, const StepInput& input) {
  if (scale_) return scale_->update(scaled_norm);
  if (!std::isfinite(scaled_norm)) {
    throw Error(
        ErrorKind::kNonFinite, "train",
        fmt::format("the norm of the gradient is {} in step {}", scaled_norm, input.step + 1))
        .at(group_.rank(), group_.size())
        .hint("a lower optimizer.learning_rate or more lr_scheduler.warmup_steps may help");
  }
  return true;
}

parallel::MicroBatch TrainingStep::micro_batch_of(const Batch& batch, std::int64_t index,
                                                  std::int64_t first_sample,
                                                  const StepInput& input) const {
  parallel::MicroBatch micro_batch;
  nn::Context& context = micro_batch.context;
  context.key = key_.child(static_cast<std::uint64_t>(input.step));
  context.micro_batch = index;
  // Masks are functions of the step's key and of the sample's place in the global batch.
  context.samples = at::arange(first_sample, first_sample + batch.inputs.size(0), at::kLong);
  context.labels = batch.labels;
  context.documents = batch.documents;
  if (balance_) context.expert_load = balance_->load();
  // The only division by a count: the labels of the global batch (idea 6 of docs/architecture.md).
  context.loss_scale = scale() / input.labels;
  context.recompute_logits = recompute_logits_;
  micro_batch.input = share_.cut(batch.inputs, context);
  return micro_batch;
}

void TrainingStep::check_loss(double value, std::int64_t index) const {
  if (std::isfinite(value)) return;
  throw Error(ErrorKind::kNonFinite, "train",
              fmt::format("the loss is {} in step {}, micro-batch {}", value, step_ + 1, index + 1))
      .at(group_.rank(), group_.size())
      .hint(scale_ ? "activations may be too large for fp16, where bf16 has the range of fp32; "
                     "the last checkpoint is intact"
                   : "a lower optimizer.learning_rate or more lr_scheduler.warmup_steps may "
                     "help; the last checkpoint is intact");
}

parallel::Pipeline& TrainingStep::pipeline_of(int micro_batches) {
  if (pipeline_of_) return pipeline_of_(micro_batches);
  if (!in_turn_ || in_turn_->table().micro_batches != micro_batches) {
    in_turn_.emplace(comm::Group(), schedule::one_forward_one_backward(1, micro_batches),
                     parallel::whole_model(model_),
                     parallel::events_in_turn(
                         reduction_, micro_batches,
                         [this](int micro_batch, double loss) { pipeline_loss(micro_batch, loss); },
                         before_actions_));
  }
  return *in_turn_;
}

double TrainingStep::run_micro_batches(const RankBatch& batch, const StepInput& input) {
  std::vector<parallel::MicroBatch> micro_batches;
  std::int64_t first = batch.first_sample;
  for (const Batch& one : batch.micro_batches) {
    const auto index = static_cast<std::int64_t>(micro_batches.size());
    parallel::MicroBatch micro_batch = micro_batch_of(one, index, first, input);
    if (input.poison == Poison::kLoss)
      micro_batch.context.loss_scale = std::numeric_limits<double>::quiet_NaN();
    if (input.poison == Poison::kGradient)
      micro_batch.loss_gradient = std::numeric_limits<double>::infinity();
    micro_batches.push_back(std::move(micro_batch));
    first += one.inputs.size(0);
  }
  // Without the loss scale, for people and for the sum over ranks.
  return pipeline_of(static_cast<int>(micro_batches.size())).run(micro_batches) / scale();
}

}  // namespace shoal::train
