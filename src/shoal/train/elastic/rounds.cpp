#include "shoal/train/elastic/rounds.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "shoal/base/duration.h"
#include "shoal/train/elastic/inner_state.h"

namespace shoal::train {

namespace elastic = collective::elastic;

Rounds::Rounds(const RunOptions& options, Run& run, const MemberRanks& ranks, OnCommit on_commit)
    : MemberWork(options, run, ranks,
                 {[this] { return round_.items(); }, [this] { return round_.items(); }, [] {}},
                 std::move(on_commit)),
      outer_(outer_of_rounds(options.job.config, run)),
      round_(run, outer_) {
  begin_at(run.record);
  if (outer_.coding.codec != collective::Codec::kNone)
    feedback_.emplace(static_cast<std::size_t>(round_.values()));
  // A replay has nothing that the optimizer may have learnt in an earlier process.
  begin_optimizer_anew(run);
  round_.take_anchor();
}

/// Other threads read `begin_`, and not the record of the run, which changes with each step.
void Rounds::begin_at(const RunRecord& record) {
  const auto held = hold_state();
  begin_ = record_of_all(record);
}

RunRecord Rounds::record_after() const {
  if (!closed_) return run_.record_after(1);
  RunRecord record = run_.record_after(0);
  record.move_to(begin_);
  return record;
}

/// The last round of a run may be a short one.
RunRecord Rounds::end() const {
  const std::int64_t every = options_.job.config.low_communication.every;
  const std::int64_t last = std::min((begin_.step / every + 1) * every, run_.total_steps);
  RunRecord end = begin_;
  run_.advance(end, last - begin_.step);
  return end;
}

void Rounds::take_back() {
  round_.take_anchor();
  run_.record.move_to(begin_);
  trained_ = 0;
  range_ = {};
}

void Rounds::read(std::span<const std::byte> bytes) {
  MemberWork::read(bytes);
  begin_at(run_.record);
  round_.take_anchor();
}

StepResult Rounds::step(MemberGroup& group, const StepInput& input) {
  closed_ = false;
  share_ = 0;
  data_wait_s_ = 0;
  for (;;) {
    group.let_join();
    if (range_.count > 0) {
      const StepResult own = train(input);
      if (run_.record.step + 1 < end().step) return own;
      return exchange(group, own);
    }
    const StepResult result = exchange(group, {});
    if (closed_) return result;
  }
}

StepResult Rounds::train(const StepInput& given) {
  const auto begin = Clock::now();
  const RankBatch batch = read_batch(range_);
  StepInput input = given;
  input.labels = ranks_.sum(count_labels(batch.micro_batches, run_.share));
  const StepResult result = unless_non_finite([&] { return run_.step->run(batch, input); });
  trained_ += range_.count;
  seconds_ += to_seconds(Clock::now() - begin);
  if (input.poison == Poison::kState) state_is_wrong_ = true;
  return result;
}

StepResult Rounds::exchange(MemberGroup& group, const StepResult& own) {
  LineageStep line;
  const elastic::StepResult step = group.step(
      [&](const Column& column, const elastic::Roster& roster) {
        elastic::Attempt attempt = this->attempt(column, roster, own);
        if (ranks_.leads()) line = line_of(roster.view);
        return attempt;
      },
      [this] { apply(); });
  range_ = next_range(step.rank);
  committed(step, std::move(line));
  StepResult result = own;
  if (!closed_) return result;
  result.loss = 0;
  for (const Part& part : parts_) result.loss += part.samples / trained_by_all_ * part.loss;
  return result;
}

elastic::Attempt Rounds::attempt(const Column& column, const elastic::Roster& roster,
                                 const StepResult& own) {
  // The last attempt may have failed because of what this member has. Of two members nobody else
  // could say which one is wrong.
  if (roster.attempt > 1) check_state();
  if (feedback_) feedback_->drop();
  next_.reset();
  gather_parts(column, own);
  const auto samples = static_cast<std::uint64_t>(trained_);
  if (trained_by_all_ == 0)
    return {.state = of_all_ranks(state_.digest(common_record())), .samples = samples};
  next_ = round_.moved_by(sum_of_differences(column), ranks_);
  fault_at(member_place::kUpdate);
  const std::vector<checkpoint::StateItem> items = round_.items_of(*next_);
  if (std::exchange(state_is_wrong_, false)) make_wrong(items);
  return {.state = of_all_ranks(RunState::digest_with(end(), items)), .samples = samples};
}

void Rounds::gather_parts(const Column& column, const StepResult& own) {
  const Part part{.samples = static_cast<double>(trained_),
                  .threads = static_cast<double>(at::get_num_threads()),
                  .is_new = is_new_ ? 1.0 : 0.0,
                  .first = static_cast<double>(range_.first),
                  .seconds = seconds_,
                  .loss = own.loss};
  constexpr std::size_t kNumbers = sizeof(Part) / sizeof(double);
  const auto* const first = reinterpret_cast<const double*>(&part);
  const std::vector<double> all = column.gather(std::span(first, kNumbers));
  parts_.clear();
  trained_by_all_ = 0;
  for (std::size_t i = 0; i < all.size(); i += kNumbers) {
    parts_.push_back({all[i], all[i + 1], all[i + 2], all[i + 3], all[i + 4], all[i + 5]});
    trained_by_all_ += parts_.back().samples;
  }
}

at::Tensor Rounds::sum_of_differences(const Column& column) {
  at::Tensor sum = round_.difference(static_cast<double>(trained_) / trained_by_all_);
  collective::Operation operation{.kind = collective::Kind::kAllReduce,
                                  .type = ElementType::kF32,
                                  .buffer = {.input = sum.data_ptr(),
                                             .output = sum.data_ptr(),
                                             .count = static_cast<std::size_t>(sum.numel())}};
  collective::CodedFeedback feedback;
  if (feedback_) {
    operation.coding = outer_.coding;
    operation.coding.key = outer_.coding.key.child(static_cast<std::uint64_t>(end().step));
    feedback = feedback_->begin(operation.coding, column.size(), column.rank());
    operation.feedback = &feedback;
  }
  column.carry_out(operation, "all_reduce", [this] { fault_at(member_place::kReduce); });
  return sum;
}

/// Is called when the last attempt is committed.
void Rounds::apply() {
  if (next_) {
    const RunRecord end = this->end();
    // The writer of a checkpoint may not have read all of it yet: a member that has trained nothing
    // since it began has not waited for that.
    if (run_.saver) run_.saver->before_update();
    {
      const auto held = hold_state();
      round_.take(*next_);
      begin_ = end;
    }
    closed_ = true;
    if (feedback_) feedback_->commit();
    if (trained_ > 0) is_new_ = false;
    trained_ = 0;
    seconds_ = 0;
  }
  next_.reset();
  if (fault_at(member_place::kCommit)) make_wrong(round_.items());
}

/// Returns the samples of this member in each step of the next round. All who were in the last
/// attempt divide it, and know the same of each other.
SampleRange Rounds::next_range(std::int64_t rank) const {
  const auto members = static_cast<std::int64_t>(parts_.size());
  if (options_.job.config.low_communication.shares == MemberShares::kEven || trained_by_all_ == 0)
    return samples_of_member(plan(), rank, members);
  double seconds = 0;
  for (const Part& part : parts_) seconds += part.seconds;
  std::vector<double> speeds;
  // A member that has trained nothing yet is taken for one of average speed.
  for (const Part& part : parts_) {
    const bool is_known = part.samples > 0 && part.seconds > 0;
    speeds.push_back(is_known ? part.samples / part.seconds : trained_by_all_ / seconds);
  }
  return samples_by_speed(plan(), speeds)[static_cast<std::size_t>(rank)];
}

/// Returns the line of the round that the last attempt ends; without members where it ends none.
LineageStep Rounds::line_of(const elastic::View& view) const {
  LineageStep line{.step = end().step, .steps = end().step - begin_.step};
  if (trained_by_all_ == 0) return line;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    LineageMember& member = line.members.emplace_back();
    member.id = view.members[i].id.text();
    member.threads = static_cast<std::int64_t>(part.threads);
    // Who has trained nothing takes part in the sum all the same.
    if (part.samples == 0) continue;
    member.first_sample = begin_.samples + static_cast<std::int64_t>(part.first);
    member.samples = static_cast<std::int64_t>(part.samples);
    member.is_new = part.is_new != 0;
  }
  return line;
}

}  // namespace shoal::train
