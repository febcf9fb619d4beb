#include "shoal/train/elastic/replay.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "shoal/base/hex.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/optim/schedule.h"
#include "shoal/train/elastic/gradient_sum.h"
#include "shoal/train/elastic/member_batch.h"
#include "shoal/train/elastic/run_state.h"
#include "shoal/train/run.h"
#include "shoal/train/run_setup.h"
#include "shoal/train/trainer.h"

namespace shoal::train {
namespace {

/// Returns the steps that the replay could begin behind, in the order in which it tries them: 0 for
/// the seed, or those of checkpoints.
std::vector<std::int64_t> beginnings(const std::vector<LineageStep>& lineage,
                                     const RunDirectory& directory) {
  if (lineage.front().step == 1) return {0};
  std::vector<std::int64_t> steps;
  for (const auto& saved : checkpoint::format::list_steps(directory.checkpoints())) {
    if (saved.step + 1 >= lineage.front().step && saved.step < lineage.back().step)
      steps.push_back(saved.step);
  }
  return steps;
}

/// Repeats one step at a time.
class Repetition {
 public:
  Repetition(const Job& job, Run& run)
      : job_(job),
        run_(run),
        state_(*run.state),
        sum_(run.optimizer->slices()),
        part_(run.optimizer->slices()) {}

  /// Returns the digest of the state before the next step.
  std::string state() const {
    RunRecord record = run_.record;
    if (run_.loss_scale) record.loss_scale = run_.loss_scale->state();
    return hex(state_.digest(record));
  }
  /// Returns the digest of the state behind the step.
  std::string repeat(const LineageStep& step) {
    check_samples(step);
    const auto members = static_cast<std::int64_t>(step.members.size());
    std::vector<RankBatch> batches;
    StepInput input{.step = run_.record.step,
                    .learning_rate = optim::learning_rate(run_.schedule, run_.record.step),
                    .clip_norm = job_.config.optimizer.clip_norm};
    for (std::int64_t i = 0; i < members; ++i) {
      batches.push_back(member_batch(*run_.data, run_.record.samples, run_.batch, i, members));
      input.labels += count_labels(batches.back().micro_batches, run_.share);
    }
    StepSum all;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      at::set_num_threads(static_cast<int>(step.members[i].threads));
      const StepSum one = run_.step->accumulate(batches[i], input);
      all.loss += one.loss;
      GradientSum& into = i == 0 ? sum_ : part_;
      into.set(one.gradients);
      if (i > 0) sum_.add(part_);
      run_.model->clear_gradients();
    }
    all.gradients = sum_.gradients();
    run_.step->update(std::move(all), input);
    run_.record = run_.record_after_step();
    return state();
  }

 private:
  /// The samples of a step follow those of the one before, and those of a member those of the one
  /// before it.
  void check_samples(const LineageStep& step) const {
    const auto members = static_cast<std::int64_t>(step.members.size());
    for (std::int64_t i = 0; i < members; ++i) {
      const SampleRange expected = samples_of_member(run_.batch, i, members);
      const LineageMember& member = step.members[static_cast<std::size_t>(i)];
      if (member.first_sample == run_.record.samples + expected.first &&
          member.samples == expected.count && member.threads > 0)
        continue;
      throw Error(
          ErrorKind::kData, "replay",
          fmt::format("step {}: member {} of {} has samples {} to {} of the lineage, and "
                      "{} to {} of the job",
                      step.step, i + 1, members, member.first_sample,
                      member.first_sample + member.samples, run_.record.samples + expected.first,
                      run_.record.samples + expected.first + expected.count));
    }
  }

  const Job& job_;
  Run& run_;
  RunState state_;
  GradientSum sum_, part_;
};

/// Returns nothing where the state behind `step` is not that which the lineage goes on from.
std::optional<Replayed> replay_from(std::int64_t step, RunOptions& options,
                                    const std::vector<LineageStep>& lineage) {
  options.from_step = step;
  Run run(comm::Group(), options.run_directory, true);
  RunSetup setup(options, run);
  setup.open();
  setup.choose_precision();
  setup.plan_memory();
  setup.build();
  Repetition repetition(options.job, run);
  Replayed replayed{.first = step + 1, .last = step, .own_set = run.record.instruction_set};
  const auto begin = lineage.begin() + (replayed.first - lineage.front().step);
  if (repetition.state() != begin->before) return std::nullopt;
  for (auto line = begin; line != lineage.end(); ++line) {
    replayed.last = line->step;
    if (line->instruction_set != replayed.own_set && !replayed.other_set)
      replayed.other_set = *line;
    replayed.state = repetition.repeat(*line);
    if (replayed.state == line->state) continue;
    replayed.differs = *line;
    break;
  }
  return replayed;
}

Error nothing_to_begin_with(const std::vector<LineageStep>& lineage, const RunDirectory& directory,
                            const std::vector<std::int64_t>& tried) {
  const LineageStep& first = lineage.front();
  if (first.step == 1) {
    return Error(ErrorKind::kInputMissing, "replay",
                 fmt::format("step 1 of {} goes on from the state {}, which is not that of the "
                             "job's seed",
                             directory.path(), first.before))
        .hint("config.toml is that of the last start: does it say what it said in the first one?");
  }
  const std::string others =
      tried.empty()
          ? ""
          : fmt::format("; those of step {} are of another branch of the group, or another job",
                        fmt::join(tried, ", "));
  return Error(ErrorKind::kInputMissing, "replay",
               fmt::format("the lineage of {} has steps {} to {}, and there is no checkpoint from "
                           "which one of them goes on{}",
                           directory.path(), first.step, lineage.back().step, others))
      .hint("replay the run of the member that began the group: its lineage begins with the seed");
}

}  // namespace

Replayed replay(const std::string& run_directory) {
  const RunDirectory directory(run_directory);
  const std::vector<LineageStep> lineage = read_lineage(directory.lineage());
  if (lineage.empty()) {
    throw Error(ErrorKind::kInputMissing, "replay",
                fmt::format("{}: no steps of an elastic group are in it", directory.lineage()))
        .hint("only `shoal train --elastic` writes it");
  }
  RunOptions options;
  options.job = load_job(directory.config());
  options.job.config.checkpoint.asynchronous = false;
  options.job.config.metrics.memory_steps = 0;
  options.run_directory = run_directory;
  const std::vector<std::int64_t> steps = beginnings(lineage, directory);
  for (const std::int64_t step : steps)
    if (auto replayed = replay_from(step, options, lineage)) return *std::move(replayed);
  throw nothing_to_begin_with(lineage, directory, steps);
}

}  // namespace shoal::train
