#include "shoal/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/out_of_memory.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/comm/allocator.h"
#include "shoal/model/model_spec.h"
#include "shoal/optim/schedule.h"
#include "shoal/parallel/activation_checkpoint.h"
#include "shoal/train/config/metrics.h"
#include "shoal/train/config/planned.h"
#include "shoal/train/evaluation.h"
#include "shoal/train/fault.h"
#include "shoal/train/generation.h"
#include "shoal/train/job_options.h"
#include "shoal/train/loss_plot.h"
#include "shoal/train/memory_watch.h"
#include "shoal/train/peak_flops.h"
#include "shoal/train/precision.h"
#include "shoal/train/progress.h"
#include "shoal/train/run_directory.h"
#include "shoal/train/step.h"
#include "shoal/train/tensorboard.h"
#include "shoal/train/training_state.h"

namespace shoal::train {
namespace {

/// What rank 0 keeps of a run: files and the console. Other ranks have none.
struct Reporter {
  Reporter(const RunOptions& options, const RunDirectory& directory, std::int64_t first,
           std::int64_t total, const char* counted)
      : metrics(directory.metrics(), first),
        progress(stdout, options.terminal, options.job.config.metrics.log_interval, first, total,
                 counted),
        console(options.console) {
    if (options.job.config.metrics.tensorboard) events.emplace(directory.tensorboard(), first);
  }

  void say(const std::string& line) {
    if (console) progress.say(line);
  }

  void step(const StepMetrics& m) {
    metrics.append(m);
    std::vector<std::pair<std::string, double>> scalars{
        {"train/loss", m.loss}, {"train/lr", m.lr}, {"train/tokens_per_s", m.tokens_per_s}};
    if (!m.skipped) scalars.emplace_back("train/grad_norm", m.grad_norm);
    if (m.loss_scale) scalars.emplace_back("train/loss_scale", *m.loss_scale);
    if (m.memory_bytes) {
      scalars.emplace_back("train/memory_bytes", *m.memory_bytes);
      for (int c = 0; c < kMemoryCategories; ++c) {
        scalars.emplace_back(fmt::format("memory/{}_bytes", name(static_cast<MemoryCategory>(c))),
                             m.memory[static_cast<std::size_t>(c)]);
      }
    }
    if (m.evaluation) {
      scalars.emplace_back("validation/loss", m.evaluation->loss);
      if (m.evaluation->bits_per_byte)
        scalars.emplace_back("validation/bits_per_byte", *m.evaluation->bits_per_byte);
      if (m.evaluation->accuracy)
        scalars.emplace_back("validation/accuracy", *m.evaluation->accuracy);
      if (m.evaluation->mean_squared_error)
        scalars.emplace_back("validation/mse", *m.evaluation->mean_squared_error);
      if (m.evaluation->mean_absolute_error)
        scalars.emplace_back("validation/mae", *m.evaluation->mean_absolute_error);
    }
    if (events) events->scalars(m.step, scalars);
    if (console) progress.step(m);
    if (m.evaluation) say(fmt::format("step {}  validation: {}", m.step, describe(*m.evaluation)));
  }

  MetricsFile metrics;
  std::optional<EventFile> events;
  Progress progress;
  bool console;
};

class Trainer {
 public:
  explicit Trainer(const RunOptions& options)
      : options_(options),
        job_(options.job),
        config_(options.job.config),
        group_(options.world),
        directory_(options.run_directory),
        memory_(options.world, config_.parallelism.in_process) {}

  int run() {
    open();
    if (record_.step >= total_) return already_finished();
    choose_precision();
    plan_memory();
    try {
      build();
      return loop();
    } catch (Error& error) {
      if (error.kind() == ErrorKind::kResource && error.operation() == "arena") {
        if (const std::string less = less_memory(); !less.empty())
          error.hint("less would be needed with: " + less);
      }
      throw;
    } catch (const std::exception& error) {
      if (!out_of_memory(error)) throw;
      throw without_memory(error.what());
    }
  }

 private:
  Error without_memory(std::string words) const {
    words.resize(std::min(words.find('\n'), words.size()));
    if (planned_) {
      words += fmt::format("; planned for a rank at its peak: {:.4g} MB ({})",
                           planned_->all() / 1e6, train::words(*planned_));
    }
    Error error(ErrorKind::kResource, "memory", words);
    error.at(group_.rank(), group_.size());
    if (const std::string less = less_memory(); !less.empty())
      error.hint("less would be needed with: " + less);
    return error;
  }

  std::string less_memory() const { return ways_to_need_less(record_.model, training_, hosts_); }

  /// What can be known without making the model: the data's sizes, the length of the run, and where
  /// it stands.
  void open() {
    data_ = open_data(job_, false);
    plan_ = batch_plan(job_, group_.size());
    total_ = total_steps(job_, data_->samples_per_epoch());
    record_ = {.data = data_->fingerprint(),
               .model = model_spec(job_, data_->sizes()),
               .job = to_toml(config_),
               .job_file = job_.file};
    // One rank looks, so that all see the same checkpoint.
    const at::Tensor newest = at::zeros({1}, at::kLong);
    const std::optional<checkpoint::format::Step> step =
        group_.rank() == 0 ? checkpoint::format::newest_step(directory_.checkpoints())
                           : std::nullopt;
    *newest.data_ptr<std::int64_t>() = step ? step->step : -1;
    group_.broadcast(newest, 0);
    const std::int64_t found = *newest.const_data_ptr<std::int64_t>();
    if (found < 0) return;
    checkpoint_ = fmt::format("{}/step-{}", directory_.checkpoints(), found);
    const RunRecord saved = read_record(*checkpoint_);
    check_same_run(saved, record_, *checkpoint_);
    record_.step = saved.step, record_.samples = saved.samples, record_.tokens = saved.tokens;
    record_.precision = saved.precision, record_.loss_scale = saved.loss_scale;
  }

  int already_finished() {
    if (group_.rank() == 0 && !std::filesystem::exists(directory_.loss_plot())) plot_losses();
    if (group_.rank() == 0 && options_.console) {
      fmt::print(
          "This run is finished: {} has all {} steps. --fresh starts anew (the old run is moved "
          "aside).\n",
          *checkpoint_, total_);
    }
    return 0;
  }

  void plot_losses() const {
    write_whole(directory_.loss_plot(), loss_plot(config_.job.name + ": " + record_.model.name,
                                                  read_metrics(directory_.metrics())));
  }

  /// What blocks keep, and what a step will take, before the model is allocated: Error(resource)
  /// when it is more than this rank may.
  void plan_memory() {
    Job typed = job_;
    typed.config.precision.type = record_.precision;
    training_ = planned_training(typed, record_.model, group_.size());
    const bool in_process = config_.parallelism.in_process;
    const comm::Group host = group_.on_host();
    const bool share = (in_process || host.visible_to_peers(at::empty({1}, at::kFloat))) &&
                       group_.size() % host.size() == 0;
    const auto arena = comm::installed_arena();
    const double limit = !arena       ? config_.parallelism.memory_limit_mb * 1e6
                         : in_process ? static_cast<double>(arena->ledger().limit) / group_.size()
                                      : static_cast<double>(arena->ledger().limit);
    hosts_ = planned_hosts(group_.size(), share ? host.size() : 1, limit);
    if (!is_counted(typed.config)) return;
    if (limit > 0) check_fits(record_.model, training_, hosts_);
    const auto ranks = plan::memory(record_.model, training_, hosts_);
    planned_ = plan::worst(ranks).peak().use;
    // How much of its state a rank copies for a checkpoint depends on how much is written by then:
    // a bound of its own.
    planned_staging_ = std::exchange(planned_->staging, 0);
    limit_ = limit;
  }

  std::string describe_plan() const {
    const double rank = planned_->all() / 1e6;
    const double all = rank * group_.size();
    const std::string staging =
        planned_staging_ > 0
            ? fmt::format("; up to {:.4g} MB a rank more while a checkpoint is written",
                          planned_staging_ / 1e6)
            : "";
    return fmt::format("Planned peak of tensors: {:.4g} MB{} ({}){}{}.", all,
                       group_.size() > 1 ? fmt::format(", {:.4g} MB a rank", rank) : "",
                       words(*planned_), staging,
                       limit_ > 0 ? fmt::format("; a rank may take {:.4g} MB", limit_ / 1e6) : "");
  }

  void build() {
    if (group_.rank() == 0) data_ = open_data(job_, true);
    const Key key(static_cast<std::uint64_t>(config_.debug.seed));
    model_ = make_job_model(record_.model, config_, data_->task());
    set_types(*model_, job_, record_.precision);
    const bool shards = config_.parallelism.zero_stage > 0;
    int replica = group_.rank();
    int replicas = group_.size();
    if (shards) {
      const mesh::Mesh mesh = sharding_mesh(config_, group_);
      replica = mesh.coordinate("replicate"), replicas = mesh.extent("replicate");
      auto sharding = parallel::sharded_data_parallel(*model_, mesh, sharding_options(config_));
      sharding_ = sharding.get(), reduction_ = std::move(sharding);
    } else {
      model_->materialize();
    }
    parallel::checkpoint_activations(*model_, training_.kept);
    if (!checkpoint_) {
      shards ? sharding_->reset_parameters(key.child("init"))
             : model_->reset_parameters(key.child("init"));
    }
    const auto owned = shards ? sharding_->owned() : parallel::whole_ranges(*model_);
    optimizer_ = optim::make_optimizer(slices_of(owned), optimizer_options(config_),
                                       storage_options(config_));
    if (!checkpoint_) reset_masters(owned, *optimizer_, key.child("init"));
    loss_scale_ = loss_scale(*model_, config_);
    if (loss_scale_ && record_.loss_scale) loss_scale_->restore(*record_.loss_scale);
    if (!loss_scale_) record_.loss_scale.reset();
    schedule_ = schedule_options(config_, total_);
    state_.emplace(owned, *optimizer_, group_, replica, replicas);
    if (checkpoint_) state_->load(*checkpoint_);
    if (shards && checkpoint_) sharding_->end_update();
    if (!shards) {
      reduction_ = parallel::data_parallel(
          *model_, group_,
          {.bucket_bytes = static_cast<std::size_t>(config_.parallelism.bucket_mb * 1e6)});
    }
    step_.emplace(*model_, *optimizer_, *reduction_, group_, key.child("dropout"),
                  loss_scale_ ? &*loss_scale_ : nullptr);
    if (config_.checkpoint.asynchronous) {
      saver_.emplace(group_, saver_options(config_));
    }
    step_->before_update([this] {
      memory_.mark("update");
      if (saver_) saver_->before_update();
    });
    memory_.record(*model_, config_.metrics.memory_steps);
    if (group_.rank() == 0) begin_report();
  }

  /// What precision.type comes to. A run that began with "auto" goes on with what it began with.
  void choose_precision() {
    const std::string& asked = config_.precision.type;
    const bool decided = asked == "auto" && checkpoint_ &&
                         (record_.precision == "fp32" || record_.precision == "bf16");
    if (decided) {
      notes_.push_back(fmt::format("precision.type = \"auto\": {}, with which this run began.",
                                   record_.precision));
    }
    if (decided || asked == "fp32")
      return void(record_.precision = decided ? record_.precision : asked);
    const std::int64_t rows =
        plan_.micro_batch * (data_->task() == Task::kTokens ? data_->tokens_per_sample() : 1);
    const ProductTimes times =
        measure_products(record_.model, rows, asked == "auto" ? "bf16" : asked,
                         std::chrono::milliseconds(100), group_);
    record_.precision = asked == "auto" ? faster_type(times) : asked;
    if (asked == "auto") notes_.push_back(describe_choice(times));
    if (const auto warning = warn_if_slow(asked, times); warning && asked != "auto")
      notes_.push_back(*warning);
  }

  /// The job with what was found out in the place of "as needed".
  JobConfig resolved() const {
    JobConfig config = config_;
    config.training.micro_batch = plan_.micro_batch;
    if (config.precision.type == "auto") config.precision.type = record_.precision;
    config.parallelism.ranks = group_.size();
    config.parallelism.threads_per_rank = at::get_num_threads();
    const model::ModelSpec& spec = record_.model;
    for (const auto& [set, found] : {std::pair{&config.model.vocab, spec.vocab},
                                     {&config.model.sequence, spec.sequence},
                                     {&config.model.inputs, spec.inputs},
                                     {&config.model.outputs, spec.outputs}})
      if (*set == 0) *set = found;
    return config;
  }

  void begin_report() {
    write_whole(directory_.config(), belonging_toml({resolved(), {}, job_.file}, group_.size()));
    if (const auto tokenizer = job_tokenizer(config_)) tokenizer->save(directory_.tokenizer());
    reporter_.emplace(options_, directory_, record_.step, total_,
                      data_->task() == Task::kTokens ? "tokens" : "samples");
    if (checkpoint_) {
      reporter_->say(
          fmt::format("Resuming from {} (step {} of {}).", *checkpoint_, record_.step, total_));
    }
    const auto tokens = data_->tokens_per_sample();
    reporter_->say(fmt::format(
        "Model: {} with {} parameters. Data: {} training samples{}.", record_.model.name,
        rounded(static_cast<double>(model::parameter_count(record_.model))),
        data_->samples_per_epoch(),
        data_->task() == Task::kTokens ? fmt::format(" of {} tokens", tokens) : ""));
    reporter_->say(fmt::format(
        "{} steps of {} samples: {} rank{} x {} micro-batch{} of {}, {} thread{} a rank.", total_,
        plan_.global, group_.size(), group_.size() == 1 ? "" : "s", plan_.accumulation,
        plan_.accumulation == 1 ? "" : "es", plan_.micro_batch, at::get_num_threads(),
        at::get_num_threads() == 1 ? "" : "s"));
    if (planned_) reporter_->say(describe_plan());
    for (const std::string& note : notes_) reporter_->say(note);
    if (const std::string precision = describe_precision(*model_, config_); !precision.empty())
      reporter_->say(fmt::format("Precision: {}.", precision));
  }

  int loop() {
    began_ = Clock::now();
    first_ = record_;
    std::int64_t saved = checkpoint_ ? record_.step : -1;
    while (record_.step < total_) {
      if (options_.current_step)
        options_.current_step->store(record_.step + 1, std::memory_order_relaxed);
      const Poison poison =
          inject_fault(config_.debug, record_.step + 1, group_.rank(), group_.size());
      const auto begin = Clock::now();
      const RankBatch batch = rank_batch(*data_, record_.samples, plan_, group_.rank());
      const Agreement agreed = agree(count_labels(batch.micro_batches));
      if (agreed.signal) return stopped(agreed.signal, saved);
      memory_.begin_step(record_.step + 1,
                         saver_ ? static_cast<double>(saver_->staged_bytes()) : 0);
      StepMetrics metrics = one_step(batch, agreed.labels, poison, begin);
      if (memory_.end_step()) write_memory();
      if (agreed.peak_bytes > 0)
        metrics.memory_bytes = agreed.peak_bytes, metrics.memory = agreed.peak;
      const bool last = record_.step == total_;
      if (last ||
          (config_.validation.interval > 0 && record_.step % config_.validation.interval == 0))
        metrics.evaluation = evaluate_now();
      if (reporter_) reporter_->step(metrics);
      if (saver_) told(saver_->poll());
      const bool due =
          config_.checkpoint.interval > 0 && record_.step % config_.checkpoint.interval == 0;
      if (due || (last && config_.checkpoint.at_end))
        saved = record_.step, last ? void(save()) : start_saving();
    }
    finish();
    return 0;
  }

  struct Agreement {
    double labels = 0;
    int signal = 0;
    double peak_bytes = 0;
    MemoryByCategory peak{};
  };

  /// One small all-reduce before a step: how many valid labels all ranks have, whether any of them
  /// was asked to stop, and what they took so far.
  Agreement agree(double labels) {
    const int signal =
        options_.stop_signal ? options_.stop_signal->load(std::memory_order_relaxed) : 0;
    const at::Tensor sums = at::zeros({4 + kMemoryCategories}, at::kDouble);
    auto* values = sums.data_ptr<double>();
    values[0] = labels, values[1] = signal == SIGINT, values[2] = signal != 0 && signal != SIGINT;
    values[3] = memory_.peak().total;
    std::copy(memory_.peak().categories.begin(), memory_.peak().categories.end(), values + 4);
    group_.all_reduce(sums);
    const int agreed = values[1] > 0 ? SIGINT : values[2] > 0 ? SIGTERM : 0;
    Agreement agreement{values[0], agreed, values[3], {}};
    std::copy(values + 4, values + 4 + kMemoryCategories, agreement.peak.begin());
    return agreement;
  }

  StepMetrics one_step(const RankBatch& batch, double labels, Poison poison,
                       Clock::time_point begin) {
    const double lr = optim::learning_rate(schedule_, record_.step);
    const StepResult result = step_->run(batch, {.step = record_.step,
                                                 .learning_rate = lr,
                                                 .clip_norm = config_.optimizer.clip_norm,
                                                 .labels = labels,
                                                 .poison = poison});
    if (loss_scale_) record_.loss_scale = loss_scale_->state();
    const std::int64_t tokens = plan_.global * data_->tokens_per_sample();
    record_.step += 1, record_.samples += plan_.global, record_.tokens += tokens;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return {.step = record_.step,
            .loss = result.loss,
            .grad_norm = result.grad_norm,
            .lr = lr,
            .tokens = record_.tokens,
            .tokens_per_s = static_cast<double>(tokens) / seconds,
            .loss_scale = result.loss_scale,
            .skipped = result.skipped,
            .evaluation = std::nullopt};
  }

  Evaluation evaluate_now() {
    // Ranks evaluate different numbers of batches, each for itself.
    if (sharding_) sharding_->unshard();
    const Evaluation evaluation = evaluate(
        *model_, *data_, group_,
        {.samples = config_.validation.batches * plan_.global, .micro_batch = plan_.micro_batch});
    if (sharding_) sharding_->reshard();
    if (!is_finite(evaluation)) {
      throw Error(
          ErrorKind::kNonFinite, "train",
          fmt::format("the evaluation after step {} gives {}", record_.step, describe(evaluation)))
          .at(group_.rank(), group_.size())
          .hint(
              "a lower optimizer.learning_rate or more lr_scheduler.warmup_steps may help; "
              "checkpoints of earlier steps are intact");
    }
    return evaluation;
  }

  void told(const std::optional<checkpoint::Saved>& saved) {
    const auto ms = [](Duration time) {
      return std::chrono::duration<double, std::milli>(time).count();
    };
    if (reporter_ && saved) {
      options_.log.info("saved {} in {:.0f} ms behind training, which it held up for {:.1f} ms",
                        saved->path, ms(saved->took), ms(saved->held_up));
    }
  }

  /// A save waits for the one before.
  void finish_saving() {
    if (saver_ && saver_->busy()) told(saver_->wait());
  }

  void start_saving() {
    if (!saver_) return void(save());
    finish_saving();
    state_->start_saving(*saver_, directory_.checkpoints(), record_, save_options(config_));
  }

  std::string save() {
    finish_saving();
    const std::string path = state_->save(directory_.checkpoints(), record_, save_options(config_));
    if (reporter_) options_.log.info("saved {}", path);
    return path;
  }

  void write_memory() const {
    write_whole(directory_.memory_timeline(group_.rank()), to_csv(memory_.marks()));
    if (reporter_) {
      write_whole(directory_.memory_plot(),
                  memory_plot(config_.job.name + ": memory of rank 0", memory_.marks()));
    }
  }

  int stopped(int signal, std::int64_t saved) {
    finish_saving();
    const std::string path =
        saved == record_.step ? fmt::format("{}/step-{}", directory_.checkpoints(), saved) : save();
    if (!reporter_) return 128 + signal;
    reporter_->progress.finish();
    reporter_->say(
        fmt::format("Stopped by {} after step {}; saved {}. The same command goes on from there.",
                    signal == SIGINT ? "SIGINT" : "SIGTERM", record_.step, path));
    return 128 + signal;
  }

  void finish() {
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    const double peak = total_peak();
    const std::vector<MemoryPeak> memory = memory_.of_all_ranks();
    if (sharding_) sharding_->unshard();
    if (!reporter_) return;
    reporter_->progress.finish();
    plot_losses();
    const double tokens = static_cast<double>(record_.tokens - first_.tokens);
    reporter_->say(fmt::format(
        "Trained {} steps, {} tokens in {}: {} tokens/s.", record_.step - first_.step,
        rounded(tokens),
        spoken(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds))),
        rounded(tokens / seconds)));
    if (loss_scale_) {
      reporter_->say(fmt::format("Loss scale {:g}; {} steps were skipped for an overflow.",
                                 loss_scale_->scale(), loss_scale_->state().skipped));
    }
    reporter_->say(describe_work(tokens / seconds, peak));
    if (!memory.empty()) {
      const auto planned = planned_ ? std::optional(planned_->all() * group_.size()) : std::nullopt;
      reporter_->say(describe(sum(memory), planned));
      write_whole(directory_.memory(), to_json(memory, planned));
    }
    if (config_.validation.sample_tokens > 0 && data_->task() == Task::kTokens) sample();
    reporter_->say(fmt::format("Metrics, loss.svg and checkpoints are in {}.", directory_.path()));
  }

  /// Model FLOPs with their formula, and what part of the measured peak they are.
  std::string describe_work(double tokens_per_s, double peak) const {
    const bool text = data_->task() == Task::kTokens;
    const double flops =
        model::training_flops_per_token(record_.model, data_->tokens_per_sample(), true);
    const double rate = flops * tokens_per_s;
    const std::string work = fmt::format("{} a {} (6 x weights that multiply it{}): {}",
                                         rounded(flops, "FLOPs"), text ? "token" : "row",
                                         text ? " + 6 x layers x heads x head size x context" : "",
                                         rounded(rate, "FLOP/s"));
    const std::string best =
        fmt::format("{} that {} products of 1024 x 1024 matrices reach here now",
                    rounded(peak, "FLOP/s"), record_.precision);
    if (rate > peak) {
      return fmt::format("{}, more than the {}: something else is busy on this machine.", work,
                         best);
    }
    return fmt::format("{}, {:.0f} % of the {}.", work, 100 * rate / peak, best);
  }

  /// The peak of all ranks together, each measuring while the others do.
  double total_peak() {
    group_.barrier();
    return group_.sum(measure_peak_flops(record_.precision, std::chrono::milliseconds(200)));
  }

  void sample() {
    const auto tokenizer = job_tokenizer(config_);
    GenerationOptions options{.tokens = config_.validation.sample_tokens,
                              .sampling = {.temperature = 0.8}};
    const Key key = Key(static_cast<std::uint64_t>(config_.debug.seed)).child("sample");
    reporter_->say(fmt::format(
        "A sample of {} tokens:\n{}", options.tokens,
        generate_text(*model_, *tokenizer, config_.validation.sample_prompt, options, key)));
  }

  const RunOptions& options_;
  const Job& job_;
  const JobConfig& config_;
  comm::Group group_;
  RunDirectory directory_;
  std::shared_ptr<const DataSource> data_;
  BatchPlan plan_;
  std::int64_t total_ = 0;
  RunRecord record_, first_;
  std::optional<std::string> checkpoint_;  ///< that the run resumes from
  std::shared_ptr<nn::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::Schedule schedule_;
  std::unique_ptr<parallel::GradientReduction> reduction_;
  parallel::Sharding* sharding_ = nullptr;      ///< the same, where it shards
  std::optional<optim::LossScale> loss_scale_;  ///< of fp16 weights
  std::vector<std::string> notes_;              ///< on precision, for the head of the report
  std::optional<TrainingState> state_;
  std::optional<TrainingStep> step_;
  std::optional<Reporter> reporter_;  ///< rank 0
  Clock::time_point began_;
  MemoryWatch memory_;
  plan::Training training_;  ///< the job as the planner sees it
  plan::Cluster hosts_;      ///< and what it runs on
  std::optional<plan::MemoryUse>
      planned_;                 ///< of one rank at its peak, without what checkpoints copy aside
  double planned_staging_ = 0;  ///< bytes of that, at most
  double limit_ = 0;            ///< bytes that this rank may take; 0: unknown
  std::optional<checkpoint::Saver> saver_;  ///< of a job that saves behind training; reads what the
                                            ///< others hold, so it goes first
};

}  // namespace

int train(const RunOptions& options) {
  try {
    return Trainer(options).run();
  } catch (const Error& error) {
    options.world.abort(error);
    throw;
  }
}

}  // namespace shoal::train
