#include "shoal/train/run_setup.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "shoal/base/instruction_sets.h"
#include "shoal/checkpoint/format/manifest.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/nccl_communicator.h"
#include "shoal/forecast/estimator.h"
#include "shoal/parallel/pipeline/forward_through.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "shoal/plan/degrees.h"
#include "shoal/plan/logits_recomputation.h"
#include "shoal/schedule/generators.h"
#include "shoal/train/config/members.h"
#include "shoal/train/config/pipeline.h"
#include "shoal/train/config/planned.h"
#include "shoal/train/config/source_weights.h"
#include "shoal/train/config/validate.h"
#include "shoal/train/device.h"
#include "shoal/train/fault.h"
#include "shoal/train/instruction_set_notes.h"
#include "shoal/train/job_options.h"
#include "shoal/train/member_changes.h"
#include "shoal/train/member_resumption.h"
#include "shoal/train/precision.h"

namespace shoal::train {

RunSetup::RunSetup(const RunOptions& options, Run& run)
    : options_(options), job_(options.job), config_(options.job.config), run_(run) {}

void RunSetup::open() {
  // First: where there is no such device nothing else matters.
  choose_device();
  // Headers alone: sizes are needed now, checksums by rank 0 later.
  run_.data = open_data(job_, false);
  JobRanks ranks = job_ranks(job_, run_.group);
  run_.mesh = std::move(ranks.mesh);
  run_.members = std::move(ranks.members);
  const int members = run_.members.size();
  run_.batch = batch_plan(job_, parallel::BatchShare(run_.mesh).ranks() * members);
  if (run_.mesh.extent(mesh::Axis::kPipeline) > 1)
    run_.table = job_schedule(job_, run_.mesh.degrees().pp, run_.batch.accumulation);
  const int last_stage = run_.table.ranks() > 0 ? run_.table.rank_of_stage.back() : 0;
  run_.share = parallel::BatchShare(run_.mesh, last_stage, context_method(config_))
                   .in_member(run_.members.rank(), members);
  run_.total_steps = total_steps(job_, run_.data->samples_per_epoch());
  run_.record = {.data = run_.data->fingerprint(),
                 .model = model_spec(job_, run_.data->sizes()),
                 .instruction_set = instruction_set_in_use(),
                 .members = describe_members(),
                 .job = to_toml(config_),
                 .job_file = job_.file};
  const auto sets = instruction_sets_of_ranks(run_.group, run_.record.instruction_set);
  if (const auto note = describe_unequal_sets(sets)) run_.notes.push_back(*note);
  note_members();
  resume_from_newest();
}

void RunSetup::choose_device() {
  const RankDevice chosen = device_of_rank(config_.parallelism.device, run_.group);
  run_.device = chosen.device;
  if (run_.device.is_cpu()) return;
  if (chosen.own) {
    run_.group = comm::with_nccl(run_.group, run_.device, longest_wait(config_));
    run_.notes.push_back("Device: a GPU for each rank; NCCL carries what they exchange.");
  } else if (run_.group.size() > 1) {
    run_.notes.push_back(
        "Device: a rank sees fewer GPUs than its host has ranks, so that what they exchange goes "
        "through the host: NCCL wants a GPU for each rank, and every rank to see them all.");
  } else {
    run_.notes.push_back("Device: a GPU.");
  }
}

std::string RunSetup::describe_members() const {
  if (!has_members(config_)) return "";
  const plan::Degrees& degrees = run_.mesh.degrees();
  std::string text = fmt::format("{} of {} rank{}", run_.members.size(), run_.mesh.size(),
                                 run_.mesh.size() == 1 ? "" : "s");
  for (const plan::Axis axis :
       {plan::Axis::kPipeline, plan::Axis::kShard, plan::Axis::kContext, plan::Axis::kTensor}) {
    if (degrees.extent(axis) > 1)
      text += fmt::format(", {} {}", plan::name(axis), degrees.extent(axis));
  }
  return text;
}

void RunSetup::note_members() {
  if (!has_members(config_)) return;
  const LowCommunicationSection& section = config_.low_communication;
  if (config_.elastic.enabled) {
    run_.notes.push_back(
        fmt::format("Rounds: {} every {} steps. Losses are this member's own, and behind the last "
                    "step of a round the mean of all.",
                    name_of(section.method), section.every));
    return;
  }
  run_.notes.push_back(
      fmt::format("Members: {}; {} every {} steps. Losses are means over the members, norm and "
                  "loss scale those of the first one.",
                  run_.record.members, name_of(section.method), section.every));
  const std::string warning = warn_of_last_steps(config_, run_.total_steps);
  if (!warning.empty()) run_.notes.push_back(warning);
}

void RunSetup::resume_from_newest() {
  // Rank 0 alone looks, so that all ranks resume from the same checkpoint.
  const std::string folder = run_.directory.checkpoints();
  std::int64_t step = -1;
  if (options_.from_step) {
    step = *options_.from_step > 0 ? *options_.from_step : -1;
  } else if (run_.group.rank() == 0) {
    if (const auto newest = checkpoint::format::newest_step(folder)) step = newest->step;
  }
  const at::Tensor agreed = at::zeros({1}, at::kLong);
  *agreed.data_ptr<std::int64_t>() = step;
  // Collective: every rank comes here, whether there is a checkpoint or not.
  run_.group.broadcast(agreed, 0);
  step = *agreed.const_data_ptr<std::int64_t>();
  if (step < 0) return;
  run_.checkpoint = checkpoint::format::step_path(folder, step);
  const RunRecord saved = read_record(*run_.checkpoint);
  if (const auto note = describe_resumed_set(saved.instruction_set, run_.record.instruction_set))
    run_.notes.push_back(*note);
  check_same_run(saved, run_.record, *run_.checkpoint);
  if (!saved.members.empty()) check_version_of_members(*run_.checkpoint);
  run_.changes = describe_changes(saved, run_.record);
  if (config_.elastic.enabled && has_members(config_)) {
    run_.notes.push_back(
        "Rounds: the model of the checkpoint is the anchor, and the momentum of the outer "
        "optimizer goes on where it has one; the optimizer of each member begins anew.");
  } else if (!has_same_members(saved, run_.record)) {
    run_.notes.push_back(describe_member_changes(saved, run_.record));
    run_.other_members = saved;
  }
  // Without members none begins.
  if (has_members(config_))
    run_.record.exchanges_after = run_.other_members ? saved.step : saved.exchanges_after;
  // Everything else of the record is this start's: the job may have changed in what it may change.
  run_.record.move_to(saved);
  run_.record.precision = saved.precision;
  run_.record.loss_scale = saved.loss_scale;
}

void RunSetup::choose_precision() {
  const Precision asked = config_.precision.type;
  Precision& chosen = run_.record.precision;
  const bool automatic = asked == Precision::kAuto;
  // A resumed run keeps its type although another machine may measure otherwise: the same job must
  // give the same bits.
  if (automatic && run_.checkpoint && chosen != Precision::kFp16) {
    run_.notes.push_back(
        fmt::format("precision.type = \"auto\": {}, with which this run began.", name_of(chosen)));
    return;
  }
  // The rest measures the products of the CPU.
  if (asked == Precision::kFp32 || !run_.device.is_cpu()) {
    chosen = asked;
    return;
  }
  const bool text = run_.data->task() == Task::kTokens;
  const std::int64_t rows = run_.batch.micro_batch * (text ? run_.data->tokens_per_sample() : 1);
  const ProductTimes times =
      measure_products(run_.record.model, rows, automatic ? Precision::kBf16 : asked,
                       std::chrono::milliseconds(100), run_.group);
  if (automatic) {
    chosen = faster_type(times);
    run_.notes.push_back(describe_choice(times));
    return;
  }
  chosen = asked;
  if (const auto warning = warn_if_slow(asked, times)) run_.notes.push_back(*warning);
}

void RunSetup::plan_memory() {
  MemoryPlan& planned = run_.memory_plan;
  const comm::Group& group = run_.group;
  const model::ModelSpec& spec = run_.record.model;
  Job typed = job_;
  typed.config.precision.type = run_.record.precision;
  planned.training = planned_training(typed, spec, group.size());
  planned.training.threads = at::get_num_threads();

  // The limit of an arena that ranks of one process share is that of all of them.
  const bool in_process = config_.parallelism.in_process;
  double limit = config_.parallelism.memory_limit_mb * 1e6;
  if (const auto arena = comm::installed_arena()) {
    limit = static_cast<double>(arena->ledger().limit);
    if (in_process) limit /= group.size();
  }
  // A tensor made now lies where parameters will: whether the ranks of this host see it tells
  // whether they can share one copy. Collective among them.
  const comm::Group host = group.on_host();
  const bool visible = in_process || host.visible_to_peers(at::empty({1}, at::kFloat));
  const bool shared = visible && group.size() % host.size() == 0;
  planned.hosts = planned_hosts(group.size(), shared ? host.size() : 1, limit);
  if (!is_counted(typed.config)) return;
  // A rank that may not take so much throws before anything large is allocated, and train() aborts
  // the others.
  if (limit > 0) check_fits(spec, planned.training, planned.hosts);
  const auto ranks = forecast::ShoalEstimator().memory(spec, planned.training, planned.hosts);
  planned.peak = plan::worst(ranks).peak().use;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::int64_t stage =
        plan::coordinate(planned.training.degrees, plan::Axis::kPipeline, rank);
    const plan::MemoryUse& use = ranks[static_cast<std::size_t>(stage)].peak().use;
    planned.rank_bytes.push_back(use.all() - use.staging);
  }
  // The part of its state that a rank copies for a checkpoint depends on how fast the checkpoint is
  // written. It is reported as a bound of its own.
  planned.staging_bytes = std::exchange(planned.peak->staging, 0);
  // Planned are evenly spread tokens. What a rank's experts take at most is told beside it.
  planned.routing_bytes =
      crowding_bytes(spec, planned.training, planned.hosts, planned.peak->all());
  planned.limit_bytes = limit;
  const double needed = planned.peak->all() + planned.staging_bytes;
  if (const auto warning = warn_of_crowding(needed, planned.routing_bytes, limit))
    run_.notes.push_back(*warning);
}

void RunSetup::build() {
  // The ranks of one job read the same files: one thorough reading is enough.
  if (run_.group.rank() == 0) run_.data = open_data(job_, true);
  allocate_model();
  make_optimizer();
  const Key key(static_cast<std::uint64_t>(config_.debug.seed));
  // The step holds references to all of these; they live in Run, which neither moves nor is copied.
  run_.step.emplace(*run_.model, *run_.optimizer, *run_.applied.reduction, run_.group,
                    key.child("dropout"), run_.loss_scale ? &*run_.loss_scale : nullptr,
                    run_.share);
  run_.balance.emplace(run_.record.model, run_.applied.reduction->owned(),
                       run_.mesh.along(plan::kStageAxes));
  run_.step->balance_routers(*run_.balance);
  if (run_.exchange)
    run_.step->train_in_member(run_.mesh.world(), run_.members.size(), longest_wait(config_));
  const auto fault_in = [this](const schedule::Schedule& table) {
    return fault_at_action(
        job_, table, [this_run = &run_] { return this_run->record.step + 1; }, run_.group.rank(),
        run_.group.size());
  };
  if (run_.table.ranks() == 0) {
    const auto micro_batches = static_cast<int>(run_.batch.accumulation);
    run_.step->before_actions(fault_in(schedule::one_forward_one_backward(1, micro_batches)));
  } else {
    const auto loss = [this_run = &run_](int micro_batch, double value) {
      this_run->step->pipeline_loss(micro_batch, value);
    };
    const auto& stages = run_.applied.stages;
    auto events = parallel::pipeline_events(*run_.applied.reduction, stages.local, loss,
                                            run_.applied.sharding);
    events.action = fault_in(run_.table);
    const bool post_validation = config_.parallelism.pipeline_parallel_post_validation;
    if (post_validation) events.confirm = [this_run = &run_] { return this_run->step->confirm(); };
    run_.pipeline.emplace(run_.mesh.along(mesh::Axis::kPipeline), run_.table, stages, events);
    // A member of an elastic group has a part of the micro-batches, which depends on how many
    // members there are.
    const auto pipeline_of = [this_run = &run_, job = &job_, events = std::move(events)](
                                 int micro_batches) -> parallel::Pipeline& {
      if (micro_batches == this_run->table.micro_batches) return *this_run->pipeline;
      auto& pipeline = this_run->pipelines_of_parts[micro_batches];
      if (!pipeline) {
        const comm::Group& group = this_run->mesh.along(mesh::Axis::kPipeline);
        pipeline = std::make_unique<parallel::Pipeline>(
            group, job_schedule(*job, group.size(), micro_batches), this_run->applied.stages,
            events);
      }
      return *pipeline;
    };
    run_.step->run_through(pipeline_of, *run_.applied.tied);
    if (post_validation) run_.step->post_validate();
    choose_head_gradient();
  }
  if (config_.checkpoint.asynchronous) run_.saver.emplace(run_.group, saver_options(config_));
  run_.step->before_update([this_run = &run_] {
    this_run->memory.mark("update");
    // The saver copies what it has not read yet before the optimizer writes to it.
    if (this_run->saver) this_run->saver->before_update();
  });
  run_.memory.record(*run_.model, config_.metrics.memory_steps);
}

// The planner makes the same choice from the same table: memory is what was planned.
void RunSetup::choose_head_gradient() {
  const model::ModelSpec& spec = run_.record.model;
  const plan::Training& training = run_.memory_plan.training;
  const bool twice = plan::recomputes_logits(spec, training, run_.table,
                                             stage_sizes(job_, spec, run_.table.stages()));
  if (twice) run_.step->recompute_logits();
  const std::string head = plan::describe_head(spec, training, twice);
  if (!head.empty()) run_.notes.push_back(fmt::format("Head: {}.", head));
}

parallel::ApplyOptions RunSetup::apply_options() const {
  parallel::ApplyOptions options{
      .recipe = job_recipe(job_),
      .context_method = context_method(config_),
      .device = run_.device,
      .set_types =
          [this](nn::Model& model) { train::set_types(model, job_, run_.record.precision); },
      // The plan decided which blocks are recomputed, so that memory is what was planned.
      .kept = run_.memory_plan.training.kept,
      .table = run_.table,
      .units_of_stage = {},
      .sharding = {}};
  if (run_.table.ranks() > 0)
    options.units_of_stage = stage_sizes(job_, run_.record.model, run_.table.stages());
  if (config_.parallelism.zero_stage > 0) options.sharding = sharding_options(config_);
  return options;
}

void RunSetup::allocate_model() {
  const Key key = Key(static_cast<std::uint64_t>(config_.debug.seed)).child("init");
  run_.model = make_job_model(run_.record.model, config_, run_.data->task());
  run_.applied = parallel::apply(*run_.model, run_.mesh, apply_options());
  if (run_.applied.tied) generate_through_stages();
  // Values come from a checkpoint where there is one: drawing them would be for nothing.
  if (draws_weights()) run_.applied.reset_parameters(*run_.model, key);
}

void RunSetup::generate_through_stages() {
  // Whoever calls the model gets what all stages give: generation runs on all ranks.
  const comm::Group& group = run_.mesh.along(mesh::Axis::kPipeline);
  run_.model->set_around([this_run = &run_, group](nn::Module&, const at::Tensor& x,
                                                   const nn::Context& context) {
    return parallel::forward_through(this_run->applied.stages, this_run->table, group, x, context,
                                     this_run->record.model.vocab, this_run->applied.sharding);
  });
}

void RunSetup::make_optimizer() {
  const Key key = Key(static_cast<std::uint64_t>(config_.debug.seed)).child("init");
  nn::Model& model = *run_.model;
  const auto owned = run_.applied.owned(model, run_.mesh);
  run_.optimizer =
      optim::make_optimizer(slices_of(owned), optimizer_options(config_), storage_options(config_));
  // The optimizer filled its masters from rounded weights; the unrounded ones are drawn again.
  if (draws_weights()) reset_masters(owned, *run_.optimizer, key);
  run_.loss_scale = loss_scale(model, config_, run_.group);
  if (run_.loss_scale && run_.record.loss_scale) run_.loss_scale->restore(*run_.record.loss_scale);
  if (!run_.loss_scale) run_.record.loss_scale.reset();
  run_.schedule = schedule_options(config_, run_.total_steps);
  run_.state.emplace(owned, *run_.optimizer, run_.group, run_.mesh.along(plan::kStageAxes));
  const bool members = has_members(config_);
  if (run_.checkpoint && (members || run_.other_members)) {
    // The anchor, with which all members make their exchange; what they have for themselves comes
    // after it.
    run_.state->load_parameters(*run_.checkpoint);
    if (!members) load_other_members();
  } else if (run_.checkpoint) {
    run_.state->load(*run_.checkpoint);
  } else if (!draws_weights()) {
    load_source();
  }
  // The shards have new values: peers must see them, as after an update.
  if (!draws_weights() && run_.applied.sharding) run_.applied.sharding->end_update();
  // Made last: it compares the values from which the ranks start.
  const double bucket_bytes = config_.parallelism.bucket_mb * 1e6;
  parallel::reduce_gradients(run_.applied, model, run_.mesh,
                             {.bucket_bytes = static_cast<std::size_t>(bucket_bytes)});
  if (members) make_exchange(owned);
}

void RunSetup::make_exchange(const std::vector<parallel::OwnedRange>& owned) {
  MemberExchangeOptions options = exchange_options(config_);
  // Of an elastic group the exchange has the state of one member; Rounds exchanges it.
  if (config_.elastic.enabled)
    options.synchronisation.outer.coding.codec = collective::Codec::kNone;
  run_.exchange.emplace(*run_.model, owned, *run_.optimizer, *run_.applied.reduction, run_.mesh,
                        run_.applied.tied ? &*run_.applied.tied : nullptr, run_.members, options);
  run_.state->exchange_through(*run_.exchange, run_.loss_scale ? &*run_.loss_scale : nullptr);
  if (!run_.checkpoint) return;
  if (config_.elastic.enabled) return run_.state->load_momentum(*run_.checkpoint);
  run_.exchange->restart(run_.record.exchanges_after);
  if (run_.other_members) {
    load_other_members();
  } else {
    run_.exchange->resume(run_.record.step);
    run_.state->load(*run_.checkpoint);
  }
  if (run_.applied.sharding) run_.applied.sharding->end_update();
}

void RunSetup::load_other_members() {
  run_.state->load_other_members(*run_.checkpoint, *run_.other_members,
                                 run_.loss_scale ? &*run_.loss_scale : nullptr);
}

void RunSetup::load_source() {
  // Rank 0 alone looks, and rewrites what is no checkpoint as a checkpoint in the run directory,
  // which all ranks see: each then reads its own ranges, whatever the mesh.
  const ModelSource source = find_model(config_.model.from);
  std::optional<SourceWeights> weights;
  const at::Tensor step = at::zeros({1}, at::kLong);
  if (run_.group.rank() == 0) {
    weights.emplace(source, run_.directory.source_weights());
    *step.data_ptr<std::int64_t>() = checkpoint::format::read_manifest(weights->checkpoint()).step;
  }
  // The newest checkpoint of a run that goes on may be another one a moment later.
  run_.group.broadcast(step, 0);
  const std::string folder = source.kind == ModelSource::Kind::kCheckpoint
                                 ? std::filesystem::absolute(source.path).parent_path().string()
                                 : run_.directory.source_weights();
  run_.state->load_parameters(
      checkpoint::format::step_path(folder, *step.const_data_ptr<std::int64_t>()));
  run_.notes.push_back(fmt::format("The weights are those of {}.", config_.model.from));
}

std::string RunSetup::memory_hint() const {
  const MemoryPlan& planned = run_.memory_plan;
  const std::string changes = memory_remedies(run_.record.model, planned.training, planned.hosts);
  return changes.empty() ? "" : "lower memory use with " + changes;
}

Error RunSetup::out_of_memory_error(std::string what) const {
  // The first line: behind it LibTorch prints a stack trace.
  what.resize(std::min(what.find('\n'), what.size()));
  if (const auto& peak = run_.memory_plan.peak) {
    what += fmt::format("; planned for a rank at its peak: {:.4g} MB ({})", peak->all() / 1e6,
                        describe(*peak));
  }
  Error error(ErrorKind::kResource, "memory", what);
  error.at(run_.group.rank(), run_.group.size());
  if (const std::string hint = memory_hint(); !hint.empty()) error.hint(hint);
  return error;
}

}  // namespace shoal::train
