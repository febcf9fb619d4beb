#include "shoal/train/training_loop.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>

#include "shoal/base/duration.h"
#include "shoal/base/span_recorder.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/model/model_spec.h"
#include "shoal/optim/schedule.h"
#include "shoal/train/device.h"
#include "shoal/train/elastic/elastic_member.h"
#include "shoal/train/job_options.h"
#include "shoal/train/machine_peak.h"
#include "shoal/train/peak_flops.h"

namespace shoal::train {
namespace {

/// The signals that ask a run to save and stop. SIGUSR1 is Slurm's warning of the time limit.
constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGUSR1};

/// The numbers that ranks sum before a step, as one message. In double: counts up to 2^53 are
/// exact.
struct StepSums {
  double labels = 0;
  double peak_bytes = 0;
  double saves_asked = 0;
  std::array<double, kStopSignals.size()> signals{};  ///< by kStopSignals: ranks asked to stop
  MemoryByCategory peak{};
  double data_wait_s = 0;
  double comm_exposed_s = 0;
};

}  // namespace

TrainingLoop::TrainingLoop(const RunOptions& options, Run& run, RunReport& report)
    : options_(options), config_(options.job.config), run_(run), report_(report) {}

int TrainingLoop::run() {
  try {
    return train();
  } catch (const StoppedWhileWaiting& stopped) {
    return stop(stopped.signal);
  }
}

int TrainingLoop::train() {
  began_ = Clock::now();
  first_step_ = run_.record.step;
  first_tokens_ = run_.record.tokens;
  // A signal before the first step must not save again what was loaded.
  if (run_.checkpoint) saved_step_ = run_.record.step;
  plan_trace();
  begin_board();
  if (run_.elastic) run_.elastic->wait_for_members();
  while (run_.record.step < run_.total_steps) {
    const std::int64_t step = run_.record.step + 1;
    begin_step_on_board(step);
    const Poison poison = inject_fault(config_.debug, step, run_.group.rank(), run_.group.size());
    run_.trace.begin_step(step);
    run_.trace.take_communication_time();
    auto begin = Clock::now();
    std::optional<ScopedSpan> whole;
    whole.emplace(SpanKind::kStep, "step");
    whole->at(step);
    Prepared prepared = ahead_ ? std::move(*ahead_) : prepare(run_.record.samples);
    ahead_.reset();
    const Agreement agreed = agreed_in(prepared);
    // Before the step: what was trained so far is saved, and no rank is in the middle of a
    // collective.
    if (agreed.signal != 0) {
      whole.reset();
      return stop(agreed.signal);
    }
    // A rank that begins a step before others have ended the last one must not wait for them to
    // agree: all tell what they know of the next step when they begin this one.
    if (agrees_ahead() && step < run_.total_steps)
      ahead_ = prepare(run_.record.samples + run_.batch.global);
    save_asked_ = save_asked_ || agreed.save;
    // In the middle of a round an elastic member has a state of its own.
    if (save_asked_ && (!run_.elastic || run_.elastic->is_at_commit())) {
      save_asked_ = false;
      const auto before = Clock::now();
      report_validated();
      save_as_asked();
      // As with the checkpoints of the interval, the step's time has none of it.
      begin += Clock::now() - before;
    }

    begin_memory(step);
    StepMetrics metrics = one_step(prepared.batch, agreed.labels, poison, begin);
    whole.reset();
    // Its samples were known when the members were.
    if (run_.elastic) prepared.data_wait_s = run_.elastic->data_wait_s();
    waits_ = Waits{prepared.data_wait_s, to_seconds(run_.trace.take_communication_time())};
    metrics.data_wait_s = agreed.data_wait_s;
    metrics.comm_exposed_s = agreed.comm_exposed_s;
    const bool recorded = run_.memory.end_step();
    if (recorded) report_.write_memory_timeline();
    // Peaks of the step before: this step's would cost an all-reduce of its own.
    if (agreed.peak_bytes > 0) {
      metrics.memory_bytes = agreed.peak_bytes;
      metrics.memory = agreed.peak;
    }
    if (unvalidated_) {
      unvalidated_ = metrics;
    } else {
      if (evaluation_is_due(run_.record.step)) metrics.evaluation = evaluate_now();
      report_step(metrics);
    }
    // poll() is collective while a checkpoint is under way: all ranks call it once a step, in the
    // same place.
    if (run_.saver) {
      if (const auto done = run_.saver->poll()) saved(*done);
    }
    save_if_due();
    if (run_.trace.end_step(step)) report_.traced(run_.trace.path());
  }
  // Asked for in the middle of the last round.
  if (save_asked_) save_as_asked();
  finish();
  return 0;
}

void TrainingLoop::begin_board() {
  const RunBoard* board = options_.board;
  if (!board || run_.group.rank() != 0) return;
  board->run->first_step = first_step_;
  board->run->total_steps = run_.total_steps;
  board->run->trained_since_ns = Clock::now().time_since_epoch().count();
}

void TrainingLoop::begin_step_on_board(std::int64_t step) {
  if (!options_.board) return;
  // For the launcher's report, should this rank die in the step.
  options_.board->ranks[run_.group.rank()].step.store(step, std::memory_order_relaxed);
  show(RunPhase::kTraining);
}

/// Shows on the board that this rank goes on, and on rank 0 with what.
void TrainingLoop::show(RunPhase phase) {
  if (!options_.board) return;
  options_.board->ranks[run_.group.rank()].progress_ns.store(
      Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  if (run_.group.rank() == 0) options_.board->run->phase.store(phase, std::memory_order_relaxed);
}

void TrainingLoop::plan_trace() {
  // Too short for a peak of the machine, long enough for a utilisation.
  const auto budget = std::chrono::milliseconds(run_.device.is_cpu() ? 5 : 50);
  plain_flops_ = run_.group.sum(
      run_.device.is_cpu() ? measure_plain_flops(budget)
                           : measure_peak_flops(run_.record.precision, budget, run_.device));
  // Its matrices are none of the job.
  reset_peak_device_memory(run_.device);
  const auto& steps = config_.metrics.trace_steps;
  if (steps.empty()) return;
  run_.trace.plan({.job = config_.job.name,
                   .first_step = steps[0],
                   .last_step = steps[1],
                   .threads = at::get_num_threads(),
                   .precision = std::string(name_of(run_.record.precision)),
                   .peak_flops = {},
                   .peak_bytes = {}},
                  run_.directory.trace());
}

double TrainingLoop::labels_of(const RankBatch& batch) const {
  const ScopedSpan span(SpanKind::kData, "count labels");
  return count_labels(batch.micro_batches, run_.share);
}

void TrainingLoop::begin_memory(std::int64_t step) {
  const ScopedSpan span(SpanKind::kReport, "memory");
  run_.memory.begin_step(step, run_.saver ? static_cast<double>(run_.saver->staged_bytes()) : 0);
}

void TrainingLoop::report_step(const StepMetrics& metrics) {
  const ScopedSpan span(SpanKind::kReport, "report");
  if (run_.elastic) report_.notes(run_.elastic->take_notes());
  report_.step(metrics);
}

/// Returns true on rank 0 when a checkpoint was asked for since the call before.
bool TrainingLoop::save_is_asked() {
  if (!options_.board || run_.group.rank() != 0) return false;
  const std::int64_t asked = options_.board->run->saves_asked;
  const bool is_new = asked > save_seen_;
  save_seen_ = asked;
  return is_new;
}

/// Ranks that are threads have one allocator a GPU, of which the first there tells.
double TrainingLoop::own_device_bytes() const {
  const bool tells = !config_.parallelism.in_process || run_.group.rank() == run_.device.index();
  return tells ? peak_device_memory(run_.device) : 0;
}

/// Reads this rank's samples of a step, and starts the one small all-reduce that keeps ranks
/// together: all divide by the same count of labels, and all save or stop before the same step
/// although a signal reaches each at another time.
TrainingLoop::Prepared TrainingLoop::prepare(std::int64_t first_sample) {
  Prepared prepared;
  // Which samples a member of an elastic group has depends on who makes the attempt with it.
  if (!run_.elastic) {
    const ScopedSpan span(SpanKind::kData, "data");
    const auto begin = Clock::now();
    // The samples follow from the position alone, which every rank and a resumed run know.
    prepared.batch = rank_batch(*run_.data, first_sample, run_.batch, run_.share.rank());
    prepared.data_wait_s = to_seconds(Clock::now() - begin);
  }
  const int signal = asked_to_stop(options_);
  const MemoryPeak& peak = run_.memory.peak();
  StepSums own;
  own.labels = labels_of(prepared.batch);
  own.peak_bytes = run_.device.is_cpu() ? peak.total : own_device_bytes();
  own.saves_asked = save_is_asked();
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) own.signals[i] = signal == kStopSignals[i];
  if (run_.device.is_cpu()) own.peak = peak.categories;
  prepared.has_waits = waits_.has_value();
  if (waits_) {
    own.data_wait_s = waits_->data;
    own.comm_exposed_s = waits_->communication;
  }
  static_assert(sizeof own % sizeof(double) == 0);
  prepared.sums = at::empty({sizeof own / sizeof(double)}, at::kDouble);
  std::memcpy(prepared.sums.data_ptr(), &own, sizeof own);
  const Duration timeout = agrees_ahead() ? kInAStep : Duration::zero();
  prepared.work = run_.group.all_reduce(prepared.sums, {.async = true, .timeout = timeout});
  if (trains_in_members()) {
    prepared.member_labels = at::empty({1}, at::kDouble);
    *prepared.member_labels.data_ptr<double>() = own.labels;
    prepared.member_work =
        run_.mesh.world().all_reduce(prepared.member_labels, {.async = true, .timeout = timeout});
  }
  return prepared;
}

/// Returns true where ranks belong to members that exchange parameters within the job. Those of an
/// elastic group exchange them in its steps.
bool TrainingLoop::trains_in_members() const { return run_.exchange && !run_.elastic; }

/// Returns true where a rank may begin a step before others have ended the last one: members wait
/// for each other at their exchanges only.
bool TrainingLoop::agrees_ahead() const {
  return config_.parallelism.pipeline_parallel_post_validation || trains_in_members();
}

TrainingLoop::Agreement TrainingLoop::agreed_in(Prepared& prepared) const {
  const auto wait = [&](comm::Work& work) {
    if (agrees_ahead()) {
      work.wait(Deadline::in(longest_wait(config_)));
    } else {
      work.order();
    }
  };
  wait(prepared.work);
  StepSums sums;
  std::memcpy(&sums, prepared.sums.const_data_ptr(), sizeof sums);
  Agreement agreement{.labels = sums.labels,
                      .save = sums.saves_asked > 0,
                      .peak_bytes = sums.peak_bytes,
                      .peak = sums.peak};
  if (prepared.member_labels.defined()) {
    wait(prepared.member_work);
    agreement.labels = *prepared.member_labels.const_data_ptr<double>();
  }
  // Of different signals the first of the list wins, on all ranks.
  for (std::size_t i = kStopSignals.size(); i-- > 0;)
    if (sums.signals[i] > 0) agreement.signal = kStopSignals[i];
  if (prepared.has_waits) {
    agreement.data_wait_s = sums.data_wait_s / run_.group.size();
    agreement.comm_exposed_s = sums.comm_exposed_s / run_.group.size();
  }
  return agreement;
}

/// A group that ends leaves the state of its last step with each member: it is saved before the
/// error is told, because the others may not come back.
StepResult TrainingLoop::step_of_member(const StepInput& input) {
  try {
    return run_.elastic->step(input);
  } catch (const StoppedWhileWaiting&) {
    throw;
  } catch (const std::exception& failure) {
    // The other ranks of this member learn of it when this one aborts them.
    const bool together = dynamic_cast<const FailedTogether*>(&failure) != nullptr ||
                          run_.elastic->has_failed_together();
    if (!together) throw;
    try {
      run_.elastic->take_back();
      if (saved_step_ == run_.record.step || run_.record.step == first_step_) {
        finish_saving();
      } else {
        run_.elastic->check_state();
        save();
      }
    } catch (const std::exception& error) {
      options_.log.warning("the state of step {} is not saved: {}", run_.record.step, error.what());
    }
    throw;
  }
}

StepMetrics TrainingLoop::one_step(const RankBatch& batch, double labels, Poison poison,
                                   Clock::time_point begin) {
  RunRecord& record = run_.record;
  // The position advances only after the step: an error leaves the record at the last complete one.
  const double lr = optim::learning_rate(run_.schedule, record.step);
  const StepInput input{.step = record.step,
                        .learning_rate = lr,
                        .clip_norm = config_.optimizer.clip_norm,
                        .labels = labels,
                        .poison = poison,
                        .may_end_early = may_end_early(record.step + 1)};
  const StepResult result = run_.elastic ? step_of_member(input) : run_.step->run(batch, input);
  // The step before this one was validated within it.
  report_validated();
  if (trains_in_members()) {
    const ScopedSpan span(SpanKind::kOptimizer, "member exchange");
    run_.exchange->after_step(record.step + 1);
  }
  // The record is what a checkpoint of this step keeps.
  const std::int64_t tokens_before = record.tokens;
  record = run_.elastic ? run_.elastic->record_after() : run_.record_after(1);
  // Of a whole round where an elastic member has had no part in it.
  const std::int64_t tokens = record.tokens - tokens_before;
  const double seconds = to_seconds(Clock::now() - begin);
  // The peak is that of the ranks of this run, which are one member of an elastic group.
  const double share = run_.elastic ? run_.elastic->share() : 1;
  const double model_flops =
      share * static_cast<double>(tokens) *
      model::training_flops_per_token(record.model, run_.data->tokens_per_sample(), true);
  StepMetrics metrics{
      .step = record.step,
      .loss = result.loss,
      .grad_norm = result.grad_norm,
      .lr = optim::learning_rate(run_.schedule, record.step - 1),
      .tokens = record.tokens,
      .tokens_per_s = static_cast<double>(tokens) / seconds,
      .step_s = seconds,
      .mfu = plain_flops_ > 0 ? std::optional(model_flops / seconds / plain_flops_) : std::nullopt,
      .loss_scale = result.loss_scale,
      .members = run_.elastic ? std::optional(run_.elastic->members()) : std::nullopt,
      .skipped = result.skipped,
      .evaluation = std::nullopt};
  if (!result.validated) unvalidated_ = metrics;
  return metrics;
}

/// Returns true when nothing that follows the step needs all ranks, or the loss, at once.
bool TrainingLoop::may_end_early(std::int64_t step) const {
  // The first step of a start chooses how gradients are sent, and the ranks agree on it.
  return agrees_ahead() && step > first_step_ + 1 && step < run_.total_steps &&
         !evaluation_is_due(step) && !save_is_due(step) && !(run_.saver && run_.saver->busy());
}

/// Reports the step that ended before it was validated, where there is one. Collective.
void TrainingLoop::report_validated() {
  if (!unvalidated_) return;
  StepMetrics metrics = *unvalidated_;
  unvalidated_.reset();
  const StepResult result = run_.step->validated();
  metrics.loss = result.loss;
  metrics.grad_norm = result.grad_norm;
  report_step(metrics);
}

bool TrainingLoop::evaluation_is_due(std::int64_t step) const {
  const std::int64_t interval = config_.validation.interval;
  return step == run_.total_steps || (interval > 0 && step % interval == 0);
}

Evaluation TrainingLoop::evaluate_now() {
  const ScopedSpan span(SpanKind::kEvaluation, "evaluation");
  show(RunPhase::kEvaluating);
  // The model of a run with members is what all of them share. A checkpoint that is being written
  // has its copy since the update of this step.
  std::unique_lock<std::mutex> held;
  if (run_.elastic) held = run_.elastic->hold_state();
  if (run_.exchange) run_.exchange->swap_anchor();
  Evaluation evaluation;
  try {
    evaluation = evaluate_model();
  } catch (...) {
    // Joiners of an elastic group may still be given the anchor.
    if (run_.elastic && run_.exchange) run_.exchange->swap_anchor();
    throw;
  }
  if (run_.exchange) run_.exchange->swap_anchor();
  // The sums are the same on all ranks, so all throw together.
  if (is_finite(evaluation)) return evaluation;
  throw Error(
      ErrorKind::kNonFinite, "train",
      fmt::format("the evaluation after step {} gives {}", run_.record.step, describe(evaluation)))
      .at(run_.group.rank(), run_.group.size())
      .hint(
          "a lower optimizer.learning_rate or more lr_scheduler.warmup_steps may help; "
          "checkpoints of earlier steps are intact");
}

Evaluation TrainingLoop::evaluate_model() {
  parallel::Sharding* const sharding = run_.applied.sharding;
  run_.memory.begin_evaluation();
  if (sharding) sharding->begin_inference();
  const std::int64_t samples = config_.validation.batches * run_.batch.global;
  const Evaluation evaluation = evaluate(*run_.model, *run_.data, run_.group, run_.share,
                                         {.samples = samples,
                                          .micro_batch = run_.batch.micro_batch,
                                          .in_step = sharding && sharding->gathers()},
                                         run_.pipeline ? &*run_.pipeline : nullptr);
  if (sharding) sharding->end_inference();
  run_.memory.end_evaluation();
  return evaluation;
}

/// Writes the checkpoint that another terminal asked for: the state before the step that begins. A
/// checkpoint that is written behind training is answered when it is complete.
void TrainingLoop::save_as_asked() {
  const ScopedSpan span(SpanKind::kCheckpoint, "checkpoint", "start");
  // The interval may just have saved this step, or may be writing it.
  if (saved_step_ != run_.record.step) {
    start_saving();
    saved_step_ = run_.record.step;
  }
  save_to_answer_ = save_seen_;
  if (!run_.saver || !run_.saver->busy()) answer_save();
  show(RunPhase::kTraining);
}

void TrainingLoop::answer_save() {
  if (save_to_answer_ == 0) return;
  options_.board->run->saved_step = saved_step_;
  // Whoever sees the number finds the step.
  options_.board->run->saves_answered = save_to_answer_;
  save_to_answer_ = 0;
}

void TrainingLoop::saved(const checkpoint::Saved& saved) {
  report_.log_save(saved);
  answer_save();
}

bool TrainingLoop::save_is_due(std::int64_t step) const {
  const std::int64_t interval = config_.checkpoint.interval;
  const bool due = interval > 0 && step % interval == 0;
  return due || (step == run_.total_steps && config_.checkpoint.at_end);
}

void TrainingLoop::save_if_due() {
  const std::int64_t step = run_.record.step;
  const bool last = step == run_.total_steps;
  if (!save_is_due(step)) return;
  const ScopedSpan span(SpanKind::kCheckpoint, "checkpoint", last ? "save" : "start");
  // The process is about to end: the last checkpoint is written before that, and so is one that a
  // signal asks for.
  if (last) {
    save();
  } else {
    start_saving();
  }
  saved_step_ = step;
}

/// The saver writes one checkpoint at a time.
void TrainingLoop::finish_saving() {
  if (run_.saver && run_.saver->busy()) saved(run_.saver->wait());
}

void TrainingLoop::start_saving() {
  if (!run_.saver) {
    save();
    return;
  }
  finish_saving();
  if (run_.exchange) run_.exchange->wait();
  run_.state->start_saving(*run_.saver, run_.directory.checkpoints(), run_.record,
                           save_options(config_));
}

std::string TrainingLoop::save() {
  show(RunPhase::kSaving);
  finish_saving();
  if (run_.exchange) run_.exchange->wait();
  const std::string path =
      run_.state->save(run_.directory.checkpoints(), run_.record, save_options(config_));
  report_.log_save(path);
  return path;
}

int TrainingLoop::stop(int signal) {
  std::string other_member;
  if (run_.elastic) {
    // The others go on at once, and need not wait until this one has saved.
    other_member = run_.elastic->other_member();
    run_.elastic->leave();
    run_.elastic->take_back();
  }
  report_validated();
  show(RunPhase::kSaving);
  if (run_.trace.finish()) report_.traced(run_.trace.path());
  finish_saving();
  // The interval may just have saved this step.
  const bool saved = saved_step_ == run_.record.step;
  const std::string path =
      saved ? checkpoint::format::step_path(run_.directory.checkpoints(), saved_step_) : save();
  show(RunPhase::kEnding);
  report_.stopped(signal, path, other_member);
  return 128 + signal;
}

void TrainingLoop::finish() {
  show(RunPhase::kEnding);
  if (run_.elastic) run_.elastic->leave();
  // The last step that the job wants to see may never come.
  if (run_.trace.finish()) report_.traced(run_.trace.path());
  // What is still being written behind training belongs to the run.
  finish_saving();
  if (run_.exchange) {
    run_.exchange->wait();
    run_.exchange->swap_anchor();
  }
  RunTotals totals;
  totals.seconds = to_seconds(Clock::now() - began_);
  totals.steps = run_.record.step - first_step_;
  totals.tokens = run_.record.tokens - first_tokens_;
  // Before the matrices of the next line.
  const double device_bytes = run_.group.sum(own_device_bytes());
  totals.peak_flops = total_peak_flops(totals.seconds);
  // Everything collective happens here, before the report, which only rank 0 writes.
  totals.memory = run_.memory.of_all_ranks();
  totals.device_bytes = device_bytes;
  if (report_.draws_sample()) totals.sample = draw_sample();
  report_.finish(totals);
}

/// Every token reads all parameters. They are gathered once where a rank has room for all of them,
/// and else for each token again, unit by unit, while other ranks run the same.
std::string TrainingLoop::draw_sample() {
  parallel::Sharding* const sharding = run_.applied.sharding;
  const bool gathers = sharding && sharding->gathers();
  const bool at_once = gathers && model_fits_whole();
  if (at_once) sharding->unshard();
  if (gathers && !at_once) sharding->begin_inference();
  // The ranks that divide the model with rank 0 draw the sample with it: where experts are divided,
  // data-parallel ranks too.
  const bool together = run_.share.in_step() || (gathers && !at_once);
  std::string sample;
  if (run_.share.generates() || together) sample = report_.draw_sample();
  if (at_once) sharding->reshard();
  if (gathers && !at_once) sharding->end_inference();
  return sample;
}

/// Returns true, on all ranks, where on each of them the whole parameters of its stages take nine
/// tenths or less of what its plan has for everything else than its own shards and states.
bool TrainingLoop::model_fits_whole() const {
  double bytes = 0;
  for (const auto& parameter : run_.model->parameters())
    bytes += static_cast<double>(parameter->tensor().numel()) * parameter->tensor().element_size();
  // The plan is that of the worst rank; this one may hold more shards and states than that.
  double held = 0;
  for (const parallel::OwnedRange& range : run_.applied.reduction->owned())
    held += static_cast<double>(range.values.nbytes());
  for (const optim::State& state : run_.optimizer->states())
    held += static_cast<double>(state.tensor.nbytes());
  const auto& peak = run_.memory_plan.peak;
  const bool fits =
      peak && bytes <= 0.9 * (peak->all() - std::max(held, peak->parameters + peak->optimizer));
  return run_.group.sum(fits ? 0 : 1) == 0;
}

/// The ranks measure at the same time, so that they compete for memory and cores as in a step. That
/// takes no more than a twentieth of what the run took.
double TrainingLoop::total_peak_flops(double run_seconds) const {
  const std::chrono::duration<double> some(std::clamp(run_seconds / 20, 0.001, 0.2));
  const auto budget = std::chrono::duration_cast<Duration>(some);
  run_.group.barrier();
  return run_.group.sum(measure_peak_flops(run_.record.precision, budget, run_.device));
}

}  // namespace shoal::train
