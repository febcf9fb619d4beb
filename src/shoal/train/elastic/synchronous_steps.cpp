#include "shoal/train/elastic/synchronous_steps.h"

#include <ATen/Parallel.h>

#include <utility>

namespace shoal::train {

namespace elastic = collective::elastic;

SynchronousSteps::SynchronousSteps(const RunOptions& options, Run& run, const MemberRanks& ranks,
                                   OnCommit on_commit)
    : MemberWork(options, run, ranks, tensors_of(*run.state), std::move(on_commit)),
      undo_(*run.optimizer),
      sum_(run.optimizer->slices()) {}

void SynchronousSteps::take_back() {
  if (!std::exchange(tried_, false)) return;
  // Other ranks of this member may see the parameters that this one owns.
  run_.applied.reduction->begin_update();
  undo_.restore();
  run_.applied.reduction->end_update();
  if (scale_before_) run_.loss_scale->restore(*scale_before_);
}

std::vector<std::byte> SynchronousSteps::write() {
  take_back();
  return MemberWork::write();
}

elastic::Attempt SynchronousSteps::attempt(const Column& column, const elastic::Roster& roster,
                                           StepInput input) {
  take_back();
  // The last attempt may have failed because of what this member has. Of two members nobody else
  // could say which one is wrong.
  if (roster.attempt > 1) check_state();
  // Another attempt may have left its gradients.
  run_.model->clear_gradients();
  const SampleRange samples = samples_of_member(plan(), roster.rank, roster.size);
  const RankBatch batch = read_batch(samples);
  const double own[2] = {ranks_.sum(count_labels(batch.micro_batches, run_.share)),
                         static_cast<double>(at::get_num_threads())};
  const std::vector<double> of_all = column.gather(own);
  parts_.clear();
  input.labels = 0;
  for (std::size_t i = 0; i < of_all.size(); i += 2) {
    parts_.push_back({of_all[i], of_all[i + 1]});
    input.labels += of_all[i];
  }
  StepSum sum = run_.step->accumulate(batch, input);
  add_up(column, sum);
  undo_.record();
  if (run_.loss_scale) scale_before_ = run_.loss_scale->state();
  tried_ = true;
  result_ = unless_non_finite([&] { return run_.step->update(std::move(sum), input); });
  fault_at(member_place::kUpdate);
  if (input.poison == Poison::kState && roster.attempt == 1) make_wrong(tensors_.to_save());
  return {.state = of_all_ranks(state_.digest(run_.record_after(1))),
          .samples = static_cast<std::uint64_t>(samples.count)};
}

/// Makes gradients and loss those of all members. A rank has gradients of what it owns, and the
/// others of its column those of the same.
void SynchronousSteps::add_up(const Column& column, StepSum& sum) {
  sum_.set(sum.gradients);
  const std::span<float> values = sum_.values();
  column.carry_out(
      {.kind = collective::Kind::kAllReduce,
       .type = ElementType::kF32,
       .buffer = {.input = values.data(), .output = values.data(), .count = values.size()}},
      "all_reduce", [this] { fault_at(member_place::kReduce); });
  const double own = ranks_.sum(sum.loss);
  double loss = 0;
  for (const double of_member : column.gather(std::span(&own, 1))) loss += of_member;
  // The update adds up those of all ranks.
  sum.loss = ranks_.leads() ? loss : 0;
  sum.gradients = sum_.gradients();
}

StepResult SynchronousSteps::step(MemberGroup& group, const StepInput& input) {
  const elastic::StepResult committed =
      group.step([&](const Column& column,
                     const elastic::Roster& roster) { return attempt(column, roster, input); },
                 [this] {
                   tried_ = false;
                   if (fault_at(member_place::kCommit)) make_wrong(tensors_.to_save());
                 });
  tell(committed);
  return result_;
}

void SynchronousSteps::tell(const elastic::StepResult& step) {
  LineageStep line{.step = run_.record.step + 1};
  const auto& members = step.view.members;
  const auto count = static_cast<std::int64_t>(members.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const SampleRange samples = samples_of_member(plan(), i, count);
    const auto member = static_cast<std::size_t>(i);
    line.members.push_back({.id = members[member].id.text(),
                            .first_sample = run_.record.samples + samples.first,
                            .samples = samples.count,
                            .threads = static_cast<std::int64_t>(parts_[member].threads)});
  }
  committed(step, std::move(line));
}

}  // namespace shoal::train
