#include "shoal/train/elastic/replay.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

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

/// Returns the step to begin behind: 0, or that of a checkpoint.
std::int64_t beginning(const std::vector<LineageStep>& lineage, const RunDirectory& directory) {
  if (lineage.front().step == 1) return 0;
  for (const auto& saved : checkpoint::format::list_steps(directory.checkpoints())) {
    if (saved.step + 1 >= lineage.front().step && saved.step < lineage.back().step)
      return saved.step;
  }
  throw Error(ErrorKind::kInputMissing, "replay",
              fmt::format("the lineage of {} has steps {} to {}, and there is no checkpoint from "
                          "which one of them goes on",
                          directory.path(), lineage.front().step, lineage.back().step))
      .hint("replay the run of the member that began the group: its lineage begins with the seed");
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
    return hex(state_.digest(run_.record));
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
  options.from_step = beginning(lineage, directory);
  Run run(comm::Group(), run_directory, true);
  RunSetup setup(options, run);
  setup.open();
  setup.choose_precision();
  setup.plan_memory();
  setup.build();
  Repetition repetition(options.job, run);
  Replayed replayed{.first = run.record.step + 1, .last = run.record.step};
  for (const LineageStep& step : lineage) {
    if (step.step <= run.record.step) continue;
    replayed.last = step.step;
    replayed.state = repetition.repeat(step);
    if (replayed.state == step.state) continue;
    replayed.differs = step;
    break;
  }
  return replayed;
}

}  // namespace shoal::train
