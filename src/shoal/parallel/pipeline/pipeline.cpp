#include "shoal/parallel/pipeline/pipeline.h"

#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/span_recorder.h"
#include "shoal/schedule/gathers.h"
#include "shoal/schedule/timeline.h"

namespace shoal::parallel {
namespace {

using schedule::Action;
using schedule::Kind;
using schedule::Schedule;

/// Returns `group`, the ranks of a table that is legal and whose stages this rank holds.
const comm::Group& checked(const comm::Group& group, const Schedule& table, const Stages& stages) {
  schedule::check(table);
  SHOAL_USER_CHECK(group.size() == table.ranks(), "pipeline",
                   "{} is for {} ranks, the group has {}", table.name, table.ranks(), group.size());
  std::vector<int> held;
  std::vector<int> wanted;
  for (const Stage& stage : stages.local) held.push_back(stage.number);
  for (int stage = 0; stage < table.stages(); ++stage)
    if (table.rank_of_stage[stage] == group.rank()) wanted.push_back(stage);
  SHOAL_USER_CHECK(held == wanted, "pipeline", "{}: rank {} has stages {}, and holds {}",
                   table.name, group.rank(), wanted, held);
  return group;
}

/// Takes the tensor of a pass out of a map, where it must be.
at::Tensor taken(std::map<std::pair<int, int>, at::Tensor>& map, const Action& action) {
  const auto found = map.extract({action.stage, action.micro_batch});
  SHOAL_CHECK(!found.empty(), "{} has no operand", schedule::to_string(action));
  return found.mapped();
}

}  // namespace

Pipeline::Pipeline(comm::Group group, Schedule table, Stages stages, PipelineEvents events,
                   at::ScalarType type)
    : group_(std::move(group)),
      stages_(std::move(stages)),
      events_(std::move(events)),
      type_(type),
      training_(checked(group_, table, stages_), table, type),
      evaluation_(group_, schedule::forward_with_gathers(table), type),
      repeatable_(schedule::repeatable(training_.table)[group_.rank()]) {
  const auto& actions = training_.table.table[group_.rank()];
  for (std::size_t i = 0; i < actions.size(); ++i)
    if (schedule::is_compute(actions[i].kind)) last_use_[actions[i].stage] = i;
  if (group_.size() > 1) advance_in_backward();
}

// A large message between hosts needs its sender again and again: the receiver would wait until the
// sender's next pass is through.
void Pipeline::advance_in_backward() {
  for (const Stage& stage : stages_.local) {
    for (const auto& parameter : stage.parameters()) {
      // The listener stays with the parameter, which may outlive this object and its group.
      parameter->on_gradient_ready([this, alive = std::weak_ptr(alive_)](nn::Parameter&) {
        if (!alive.expired()) group_.poll();
      });
    }
  }
}

double Pipeline::run(const std::vector<MicroBatch>& batch) {
  const c10::AutoGradMode recording(true);
  begin(training_, batch);
  if (events_.begin) events_.begin();
  const auto& actions = training_.table.table[group_.rank()];
  confirmed_ = !events_.confirm;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!confirmed_ && i == repeatable_ && !confirm()) i = 0;
    const Action& action = actions[i];
    training_.messages.post_ahead(i);
    if (events_.action) events_.action(action);
    const auto use = last_use_.find(action.stage);
    const bool last = use != last_use_.end() && use->second == i;
    if (last && events_.finishing) events_.finishing(action.stage);
    move_parameters(action);
    carry_out(training_.messages, action, batch[action.micro_batch]);
    if (last && events_.let_go) events_.let_go(action.stage);
    // Messages that found no room when they were sent go on here.
    training_.messages.poll();
  }
  return finish(training_);
}

/// Asks whether the parameters are those with which the step began. If not, everything that it has
/// done so far is forgotten.
bool Pipeline::confirm() {
  // Who learns that an update was wrong writes other values at once: no peer may still fetch the
  // old ones.
  for (const int stage : std::exchange(arriving_, {}))
    if (events_.gathered) events_.gathered(stage);
  confirmed_ = true;
  if (!events_.confirm()) {
    take_back();
    return false;
  }
  for (const auto& [micro_batch, loss] : std::exchange(untold_losses_, {}))
    if (events_.loss) events_.loss(micro_batch, loss);
  return true;
}

/// Forgets the forward passes of this step, before any of them had a backward pass.
void Pipeline::take_back() {
  // The same stages on all ranks that hold them: they follow one list.
  for (const int stage : std::exchange(gathered_, {}))
    if (events_.release) events_.release(stage);
  untold_losses_.clear();
  training_.messages.take_back();
  passes_.clear();
  inputs_.clear();
  outgoing_activations_.clear();
  losses_.assign(losses_.size(), 0);
}

double Pipeline::evaluate(const std::vector<MicroBatch>& batch) {
  const c10::AutoGradMode not_recording(false);
  begin(evaluation_, batch);
  const auto& actions = evaluation_.table.table[group_.rank()];
  for (std::size_t i = 0; i < actions.size(); ++i) {
    evaluation_.messages.post_ahead(i);
    move_parameters(actions[i]);
    carry_out(evaluation_.messages, actions[i], batch[actions[i].micro_batch]);
    evaluation_.messages.poll();
  }
  return finish(evaluation_);
}

void Pipeline::begin(Program& program, const std::vector<MicroBatch>& batch) {
  SHOAL_USER_CHECK(!failed_, "pipeline", "an earlier step ended with an error");
  SHOAL_USER_CHECK(batch.size() == static_cast<std::size_t>(program.table.micro_batches),
                   "pipeline", "{} is for {} micro-batches, there are {}", program.table.name,
                   program.table.micro_batches, batch.size());
  // Until the end of the step: what it leaves behind when it throws (receives in flight, passes
  // without backward) fits no other step.
  failed_ = true;
  losses_.assign(batch.size(), 0);
  program.messages.begin([this, &batch](const Action& receive) {
    // The gradient of an output has the shape of the next stage's input.
    const int stage = receive.stage + (receive.kind == Kind::kReceiveGradient ? 1 : 0);
    const MicroBatch& micro_batch = batch[receive.micro_batch];
    return stages_.input_shape(stage, micro_batch.input, micro_batch.context.stream);
  });
}

double Pipeline::finish(Program& program) {
  program.messages.finish();
  SHOAL_CHECK(passes_.empty() && inputs_.empty() && gradients_.empty(), "{}: {} passes are left",
              program.table.name, passes_.size());
  failed_ = false;
  // In the order of the micro-batches, whatever that of the table is.
  return std::accumulate(losses_.begin(), losses_.end(), 0.0);
}

void Pipeline::move_parameters(const Action& action) {
  const int stage = action.stage;
  if (action.kind == Kind::kGather) {
    gathered_.insert(stage);
    arriving_.insert(stage);
    if (events_.gather) events_.gather(stage);
  } else if (action.kind == Kind::kRelease) {
    gathered_.erase(stage);
    arriving_.erase(stage);
    if (events_.release) events_.release(stage);
  } else if (schedule::is_compute(action.kind) && arriving_.erase(stage) > 0 && events_.gathered) {
    events_.gathered(stage);
  }
}

void Pipeline::carry_out(Messages& messages, const Action& action, const MicroBatch& batch) {
  const Pass pass{action.stage, action.micro_batch};
  switch (action.kind) {
    case Kind::kReceiveActivation:
      inputs_[pass] = messages.take(action);
      return;
    case Kind::kReceiveGradient:
      gradients_[pass] = messages.take(action);
      return;
    case Kind::kSendActivation:
      return messages.send(action, taken(outgoing_activations_, action));
    case Kind::kSendGradient:
      return messages.send(action, taken(outgoing_gradients_, action));
    case Kind::kForward: {
      const ScopedSpan span(SpanKind::kForward, "forward");
      span.at(action.micro_batch + 1, action.stage + 1);
      return forward(action, batch);
    }
    case Kind::kBackward:
    case Kind::kInputGradient: {
      const ScopedSpan span(SpanKind::kBackward,
                            action.kind == Kind::kBackward ? "backward" : "input gradient");
      span.at(action.micro_batch + 1, action.stage + 1);
      return backward(action);
    }
    case Kind::kWeightGradient: {
      const ScopedSpan span(SpanKind::kBackward, "weight gradient");
      span.at(action.micro_batch + 1, action.stage + 1);
      passes_.at(pass)->weight_gradient();
      passes_.erase(pass);
      return;
    }
    case Kind::kGather:
    case Kind::kRelease:
      return;
  }
}

void Pipeline::forward(const Action& action, const MicroBatch& batch) {
  const Pass pass{action.stage, action.micro_batch};
  const bool first = action.stage == 0;
  const bool last = action.stage + 1 == training_.table.stages();
  const bool trains = at::GradMode::is_enabled();
  auto made = std::make_unique<StagePass>(stage(action.stage), batch.loss_gradient,
                                          [this] { group_.poll(); });
  at::Tensor output =
      made->forward(first ? batch.input : taken(inputs_, action), batch.context, !first);
  check_output(action, output, batch);
  double loss = made->extra_losses();
  if (trains) passes_[pass] = std::move(made);
  if (last) {
    loss += output.item<double>();
  } else if (is_local(action.stage + 1)) {
    inputs_[{action.stage + 1, action.micro_batch}] = std::move(output);
  } else {
    outgoing_activations_[pass] = std::move(output);
  }
  losses_[action.micro_batch] += loss;
  if (!trains || (!last && loss == 0)) return;
  if (!confirmed_) {
    untold_losses_.emplace_back(action.micro_batch, loss);
  } else if (events_.loss) {
    events_.loss(action.micro_batch, loss);
  }
}

void Pipeline::backward(const Action& action) {
  const Pass pass{action.stage, action.micro_batch};
  const bool last = action.stage + 1 == training_.table.stages();
  const at::Tensor gradient = last ? at::Tensor() : taken(gradients_, action);
  StagePass& made = *passes_.at(pass);
  at::Tensor of_input;
  if (action.kind == Kind::kBackward) {
    of_input = made.backward(gradient);
    passes_.erase(pass);
  } else {
    of_input = made.input_gradient(gradient);
  }
  if (action.stage == 0) return;
  auto& destination = is_local(action.stage - 1) ? gradients_[{action.stage - 1, pass.second}]
                                                 : outgoing_gradients_[pass];
  destination = std::move(of_input);
}

void Pipeline::check_output(const Action& action, const at::Tensor& output,
                            const MicroBatch& batch) const {
  if (action.stage + 1 == training_.table.stages()) {
    SHOAL_USER_CHECK(batch.context.labels.defined() && output.dim() == 0, "pipeline",
                     "{}: the last stage gives {} values, not a loss: has the context labels?",
                     schedule::to_string(action), output.numel());
    return;
  }
  const auto wanted = stages_.input_shape(action.stage + 1, batch.input, batch.context.stream);
  SHOAL_USER_CHECK(output.sizes() == wanted && output.scalar_type() == type_, "pipeline",
                   "{} gives [{}] of type {}, stage {} reads [{}] of type {}",
                   schedule::to_string(action), fmt::join(output.sizes(), ", "),
                   c10::toString(output.scalar_type()), action.stage + 1, fmt::join(wanted, ", "),
                   c10::toString(type_));
}

const Stage& Pipeline::stage(int number) const {
  return *std::find_if(stages_.local.begin(), stages_.local.end(),
                       [number](const Stage& stage) { return stage.number == number; });
}

bool Pipeline::is_local(int stage) const {
  return training_.table.rank_of_stage[stage] == group_.rank();
}

}  // namespace shoal::parallel
