#include "shoal/train/report/run_report.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "shoal/base/figures.h"
#include "shoal/base/units.h"
#include "shoal/model/model_spec.h"
#include "shoal/train/config/loss_plot.h"
#include "shoal/train/config/planned.h"
#include "shoal/train/evaluation.h"
#include "shoal/train/generation.h"
#include "shoal/train/job_options.h"
#include "shoal/train/peak_flops.h"
#include "shoal/train/precision.h"
#include "shoal/train/report/memory_timeline.h"

namespace shoal::train {
namespace {

using Scalars = std::vector<std::pair<std::string, double>>;

void add(Scalars& scalars, const char* name, const std::optional<double>& value) {
  if (value) scalars.emplace_back(name, *value);
}

/// Lists the scalars that TensorBoard shows for a step.
Scalars scalars_of(const StepMetrics& m) {
  Scalars scalars{
      {"train/loss", m.loss}, {"train/lr", m.lr}, {"train/tokens_per_s", m.tokens_per_s}};
  // TensorBoard draws no infinity.
  if (!m.skipped) scalars.emplace_back("train/grad_norm", m.grad_norm);
  add(scalars, "train/loss_scale", m.loss_scale);
  add(scalars, "train/step_s", m.step_s);
  add(scalars, "train/mfu", m.mfu);
  add(scalars, "train/data_wait_s", m.data_wait_s);
  add(scalars, "train/comm_exposed_s", m.comm_exposed_s);
  add(scalars, "train/memory_bytes", m.memory_bytes);
  for (int c = 0; c < kMemoryCategories && m.memory_bytes; ++c) {
    scalars.emplace_back(fmt::format("memory/{}_bytes", name(static_cast<MemoryCategory>(c))),
                         m.memory[static_cast<std::size_t>(c)]);
  }
  if (!m.evaluation) return scalars;
  scalars.emplace_back("validation/loss", m.evaluation->loss);
  add(scalars, "validation/bits_per_byte", m.evaluation->bits_per_byte);
  add(scalars, "validation/accuracy", m.evaluation->accuracy);
  add(scalars, "validation/mse", m.evaluation->mean_squared_error);
  add(scalars, "validation/mae", m.evaluation->mean_absolute_error);
  return scalars;
}

/// "1 thread", "4 threads"; "2 micro-batches".
std::string counted(std::int64_t count, const std::string& one, const char* plural = "s") {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : plural);
}

}  // namespace

RunReport::RunReport(const RunOptions& options, const Run& run)
    : options_(options), config_(options.job.config), run_(run) {}

void RunReport::print(const std::string& line) {
  if (options_.console) progress_->print(line);
}

void RunReport::already_finished() const {
  if (!writes()) return;
  if (!std::filesystem::exists(run_.directory.loss_plot())) plot_losses();
  if (!options_.console) return;
  fmt::print(
      "This run is finished: {} has all {} steps. --fresh starts anew (the old run is moved "
      "aside).\n",
      *run_.checkpoint, run_.total_steps);
  // A changed job has changed nothing, and its user waits for what it would do.
  if (!run_.changes.empty()) fmt::print("{}\n", run_.changes);
}

void RunReport::begin() {
  if (!writes()) return;
  // config.toml has every value that the run found out: it repeats this run, whatever the defaults
  // become.
  const Job resolved{resolved_config(), {}, options_.job.file};
  const std::string job = belonging_toml(resolved, run_.group.size());
  write_whole(run_.directory.config(), job);
  // A copy beside the checkpoints: they are useful without the data set.
  if (const auto tokenizer = job_tokenizer(config_)) tokenizer->save(run_.directory.tokenizer());
  const std::int64_t first = run_.record.step;
  metrics_.emplace(run_.directory.metrics(), first);
  const bool text = run_.data->task() == Task::kTokens;
  progress_.emplace(stdout, options_.terminal, config_.metrics.log_interval, first,
                    run_.total_steps, text ? "tokens" : "samples");
  if (config_.metrics.tensorboard) {
    events_.emplace(run_.directory.tensorboard(), first);
    events_->text(first, "job", job);
  }
  print_head();
}

void RunReport::print_head() {
  if (run_.checkpoint) {
    print(fmt::format("Resuming from {} (step {} of {}).", *run_.checkpoint, run_.record.step,
                      run_.total_steps));
  }
  const model::ModelSpec& spec = run_.record.model;
  const bool text = run_.data->task() == Task::kTokens;
  print(fmt::format("Model: {} with {} parameters. Data: {} training samples{}.", spec.name,
                    format_si(static_cast<double>(model::parameter_count(spec))),
                    run_.data->samples_per_epoch(),
                    text ? fmt::format(" of {} tokens", run_.data->tokens_per_sample()) : ""));
  print(describe_batch());
  if (run_.memory_plan.peak) print(describe_plan());
  if (!run_.changes.empty()) print(run_.changes);
  for (const std::string& note : run_.notes) print(note);
  const std::string precision = describe_precision(*run_.model, config_);
  if (!precision.empty()) print(fmt::format("Precision: {}.", precision));
}

std::string RunReport::describe_batch() const {
  const int tensor = run_.mesh.extent(mesh::Axis::kTensor);
  std::string ranks = counted(run_.share.ranks(), "rank");
  if (tensor > 1) ranks = fmt::format("{} x {} tensor-parallel ranks", run_.share.ranks(), tensor);
  const int context = run_.mesh.extent(mesh::Axis::kContext);
  if (context > 1) ranks = fmt::format("{} x {} context-parallel ranks", ranks, context);
  if (const int experts = run_.mesh.extent(mesh::Axis::kExpert); experts > 1)
    ranks += fmt::format(" (experts on {})", experts);
  if (run_.table.ranks() > 0) {
    ranks = fmt::format("{} x {} pipeline ranks ({}{})", ranks, run_.table.ranks(), run_.table.name,
                        run_.table.stages() > run_.table.ranks()
                            ? fmt::format(", {} stages", run_.table.stages())
                            : "");
  }
  return fmt::format("{} steps of {} samples: {} x {} of {}, {} a rank.", run_.total_steps,
                     run_.batch.global, ranks,
                     counted(run_.batch.accumulation, "micro-batch", "es"), run_.batch.micro_batch,
                     counted(at::get_num_threads(), "thread"));
}

std::string RunReport::describe_plan() const {
  const MemoryPlan& planned = run_.memory_plan;
  const double rank = planned.peak->all() / kMB;
  std::string text =
      fmt::format("Planned peak of tensors: {:.4g} MB", planned.all_ranks_bytes() / kMB);
  if (run_.group.size() > 1)
    text += fmt::format(", {}{:.4g} MB a rank", run_.table.ranks() > 0 ? "up to " : "", rank);
  text += fmt::format(" ({})", describe(*planned.peak));
  if (planned.staging_bytes > 0) {
    text += fmt::format("; up to {:.4g} MB a rank more while a checkpoint is written",
                        planned.staging_bytes / kMB);
  }
  if (planned.routing_bytes > 0) {
    text += fmt::format("; up to {:.4g} MB a rank more if all tokens go to the experts of one",
                        planned.routing_bytes / kMB);
  }
  if (planned.limit_bytes > 0) {
    const double limit = planned.limit_bytes / kMB;
    // Four digits of 11,030 MB would be 1.103e+04.
    text += fmt::format("; a rank may take {:.{}f} MB", limit, limit < 1000 ? 1 : 0);
  }
  return text + ".";
}

/// The job with every value that the run found out in the place of "as needed".
JobConfig RunReport::resolved_config() const {
  JobConfig config = config_;
  config.training.micro_batch = run_.batch.micro_batch;
  if (config.precision.type == Precision::kAuto) config.precision.type = run_.record.precision;
  config.parallelism.ranks = run_.group.size();
  config.parallelism.threads_per_rank = at::get_num_threads();
  const model::ModelSpec& spec = run_.record.model;
  for (const auto& [set, found] : {std::pair{&config.model.vocab, spec.vocab},
                                   {&config.model.sequence, spec.sequence},
                                   {&config.model.inputs, spec.inputs},
                                   {&config.model.outputs, spec.outputs}}) {
    // 0 stands for "as the data needs".
    if (*set == 0) *set = found;
  }
  return config;
}

void RunReport::step(const StepMetrics& metrics) {
  if (!writes()) return;
  metrics_->append(metrics);
  if (events_) events_->scalars(metrics.step, scalars_of(metrics));
  if (!options_.console) return;
  progress_->step(metrics);
  if (metrics.evaluation)
    print(fmt::format("step {}  validation: {}", metrics.step, describe(*metrics.evaluation)));
}

void RunReport::log_save(const std::string& path) const {
  if (writes()) options_.log.info("saved {}", path);
}

void RunReport::log_save(const checkpoint::Saved& saved) const {
  if (!writes()) return;
  const auto ms = [](Duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  options_.log.info("saved {} in {:.0f} ms behind training, which it held up for {:.1f} ms",
                    saved.path, ms(saved.took), ms(saved.held_up));
}

void RunReport::write_memory_timeline() {
  const auto& marks = run_.memory.marks();
  write_whole(run_.directory.memory_timeline(run_.group.rank()), to_csv(marks));
  if (!writes()) return;
  write_whole(run_.directory.memory_plot(),
              memory_plot(config_.job.name + ": memory of rank 0", marks));
  if (events_ && !marks.empty())
    events_->picture(marks.back().step, "memory", memory_pixels(marks), memory_legend(marks));
}

void RunReport::traced(const std::string& path) {
  if (!writes()) return;
  print(fmt::format("{} shows what the ranks did; `shoal profile {}` sums it up.", path,
                    run_.directory.path()));
}

void RunReport::plot_losses() const {
  write_whole(run_.directory.loss_plot(),
              loss_plot(config_.job.name + ": " + run_.record.model.name,
                        read_metrics(run_.directory.metrics())));
}

void RunReport::notes(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    options_.log.info("{}", line);
    if (writes()) print(line);
  }
}

void RunReport::stopped(int signal, const std::string& path, const std::string& other_member) {
  if (!writes()) return;
  progress_->finish();
  const std::string next =
      other_member.empty()
          ? "The same command goes on from there."
          : fmt::format("The other members go on: --elastic --join {} comes back to them.",
                        other_member);
  print(fmt::format("Stopped by SIG{} after step {}; saved {}. {}", ::sigabbrev_np(signal),
                    run_.record.step, path, next));
}

void RunReport::finish(const RunTotals& totals) {
  if (!writes()) return;
  progress_->finish();
  // From the metrics file, which has the steps of earlier starts too.
  plot_losses();
  const auto tokens = static_cast<double>(totals.tokens);
  const char* unit = run_.data->task() == Task::kTokens ? "tokens" : "samples";
  print(fmt::format("Trained {} steps, {} {} in {}: {} {}/s.", totals.steps, format_si(tokens),
                    unit, format_duration(totals.seconds), format_si(tokens / totals.seconds),
                    unit));
  if (const auto& scale = run_.loss_scale) {
    print(fmt::format("Loss scale {:g}; {} steps were skipped for an overflow.", scale->scale(),
                      scale->state().skipped));
  }
  print(describe_work(tokens / totals.seconds, totals.peak_flops));
  if (run_.device.is_cpu() && !totals.memory.empty()) print_memory(totals.memory);
  if (!run_.device.is_cpu()) {
    print(fmt::format("Tensors took {} of GPU memory at the peak.",
                      format_si(totals.device_bytes, "B")));
  }
  if (!totals.sample.empty()) {
    print(
        fmt::format("A sample of {} tokens:\n{}", config_.validation.sample_tokens, totals.sample));
    if (events_) events_->text(run_.record.step, "sample", totals.sample);
  }
  print(fmt::format("Metrics, loss.svg and checkpoints are in {}.", run_.directory.path()));
}

void RunReport::print_memory(const std::vector<MemoryPeak>& memory) {
  const MemoryPlan& planned = run_.memory_plan;
  std::optional<double> all_ranks;
  if (planned.peak) all_ranks = planned.all_ranks_bytes();
  print(describe(sum(memory), all_ranks));
  write_whole(run_.directory.memory(), to_json(memory, planned.rank_bytes));
}

/// Model FLOPs with their formula, and which part of the measured peak they are.
std::string RunReport::describe_work(double tokens_per_s, double peak_flops) const {
  const bool text = run_.data->task() == Task::kTokens;
  const double flops =
      model::training_flops_per_token(run_.record.model, run_.data->tokens_per_sample(), true);
  // Model FLOPs: what is recomputed does not count, so that saving memory does not look like speed.
  const double rate = flops * tokens_per_s;
  const std::string work =
      fmt::format("{} a {} (6 x weights that multiply it{}): {}", format_si(flops, "FLOPs"),
                  text ? "token" : "row", text ? " + 6 x layers x heads x head size x context" : "",
                  format_si(rate, "FLOP/s"));
  const std::string best = fmt::format(
      "{} that {} products of {} x {} matrices reach here now", format_si(peak_flops, "FLOP/s"),
      name_of(run_.record.precision), peak_size(run_.device), peak_size(run_.device));
  // The peak was measured after training, on a machine that others may use.
  if (rate > peak_flops) {
    return fmt::format("{}, more than the {}: something else is busy on this machine.", work, best);
  }
  return fmt::format("{}, {:.0f} % of the {}.", work, 100 * rate / peak_flops, best);
}

bool RunReport::draws_sample() const {
  return config_.validation.sample_tokens > 0 && run_.data->task() == Task::kTokens;
}

std::string RunReport::draw_sample() const {
  const std::int64_t tokens = config_.validation.sample_tokens;
  const auto tokenizer = job_tokenizer(config_);
  const GenerationOptions options{.tokens = tokens, .sampling = {.temperature = 0.8}};
  const Key key = Key(static_cast<std::uint64_t>(config_.debug.seed)).child("sample");
  return generate_text(*run_.model, *tokenizer, config_.validation.sample_prompt, options, key);
}

}  // namespace shoal::train
