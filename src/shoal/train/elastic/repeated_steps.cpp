#include "shoal/train/elastic/repeated_steps.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "shoal/base/hex.h"
#include "shoal/optim/schedule.h"

namespace shoal::train {

RepeatedSteps::RepeatedSteps(const Job& job, Run& run, const MemberRanks& ranks)
    : job_(job),
      run_(run),
      ranks_(ranks),
      plan_(plan_of_members(run.batch, run.share)),
      state_(tensors_of(*run.state)),
      sum_(run.optimizer->slices()),
      part_(run.optimizer->slices()) {}

std::string RepeatedSteps::state() const {
  return hex(ranks_.combined(state_.digest(run_.record_after(0))));
}

std::string RepeatedSteps::repeat(const LineageStep& step) {
  check_samples(step);
  const auto members = static_cast<std::int64_t>(step.members.size());
  std::vector<RankBatch> batches;
  StepInput input{.step = run_.record.step,
                  .learning_rate = optim::learning_rate(run_.schedule, run_.record.step),
                  .clip_norm = job_.config.optimizer.clip_norm};
  for (std::int64_t i = 0; i < members; ++i) {
    const SampleRange samples =
        samples_of_rank(run_.batch, samples_of_member(plan_, i, members), run_.share);
    batches.push_back(member_batch(*run_.data, run_.record.samples, run_.batch, samples));
    input.labels += count_labels(batches.back().micro_batches, run_.share);
  }
  input.labels = ranks_.sum(input.labels);
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
  run_.record = run_.record_after(1);
  return state();
}

/// The samples of a step follow those of the one before, and those of a member those of the one
/// before it.
void RepeatedSteps::check_samples(const LineageStep& step) const {
  const auto members = static_cast<std::int64_t>(step.members.size());
  for (std::int64_t i = 0; i < members; ++i) {
    const SampleRange expected = samples_of_member(plan_, i, members);
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

}  // namespace shoal::train
