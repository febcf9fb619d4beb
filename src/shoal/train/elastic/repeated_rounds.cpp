#include "shoal/train/elastic/repeated_rounds.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/hex.h"
#include "shoal/collective/codec/coded_exchange.h"
#include "shoal/optim/schedule.h"
#include "shoal/train/elastic/member_batch.h"
#include "shoal/train/elastic/run_state.h"

namespace shoal::train {
namespace {

/// Carries the bytes of a coded all-reduce from rank to rank.
void exchange(std::vector<collective::CodedExchange>& ranks) {
  const auto size = static_cast<int>(ranks.size());
  const auto copy = [](const collective::CodedExchange& from, collective::Range source,
                       const collective::CodedExchange& to, collective::Range place) {
    std::memcpy(to.at(place.begin), from.at(source.begin), source.size());
  };
  for (int to = 0; to < size; ++to) {
    for (int from = 0; from < size; ++from) {
      if (from != to)
        copy(ranks[from], ranks[from].contribution(to), ranks[to], ranks[to].slot(from));
    }
    ranks[to].add_up();
  }
  for (int from = 1; from < size; ++from)
    copy(ranks[from], ranks[from].sum(from), ranks[0], ranks[0].sum(from));
  ranks[0].finish();
}

}  // namespace

RepeatedRounds::RepeatedRounds(const Job& job, Run& run, const MemberRanks& ranks)
    : job_(job),
      run_(run),
      ranks_(ranks),
      plan_(plan_of_members(run.batch, run.share)),
      outer_(outer_of_rounds(job.config, run)),
      round_(run, outer_) {}

std::string RepeatedRounds::state() const {
  return hex(ranks_.combined(RunState::digest_with(record_of_all(run_.record), round_.items())));
}

std::string RepeatedRounds::repeat(const LineageStep& round) {
  check(round);
  double samples = 0;
  for (const LineageMember& member : round.members) samples += static_cast<double>(member.samples);
  const RunRecord begin = run_.record;
  std::vector<at::Tensor> differences;
  for (const LineageMember& member : round.members) {
    run_.record = begin;
    differences.push_back(train(round, member, static_cast<double>(member.samples) / samples));
  }
  round_.take(round_.moved_by(sum_of(round, std::move(differences)), ranks_));
  // A member that is not in a round has been lost: a process that comes back has another id.
  const auto is_lost = [&](const auto& entry) {
    return std::none_of(round.members.begin(), round.members.end(),
                        [&](const LineageMember& member) { return member.id == entry.first; });
  };
  std::erase_if(inner_, is_lost);
  std::erase_if(feedback_, is_lost);
  run_.record = begin;
  run_.record = run_.record_after(round.steps);
  return state();
}

at::Tensor RepeatedRounds::train(const LineageStep& round, const LineageMember& member,
                                 double weight) {
  round_.take_anchor();
  if (member.samples > 0) {
    at::set_num_threads(static_cast<int>(member.threads));
    begin_optimizer_anew(run_);
    if (!member.is_new) inner_.at(member.id).restore(run_);
    const SampleRange samples = samples_of_rank(run_.batch, samples_of(round, member), run_.share);
    for (std::int64_t step = 0; step < round.steps; ++step) {
      const RankBatch batch = member_batch(*run_.data, run_.record.samples, run_.batch, samples);
      run_.step->run(batch, {.step = run_.record.step,
                             .learning_rate = optim::learning_rate(run_.schedule, run_.record.step),
                             .clip_norm = job_.config.optimizer.clip_norm,
                             .labels = ranks_.sum(count_labels(batch.micro_batches, run_.share))});
      run_.record = run_.record_after(1);
    }
    inner_.insert_or_assign(member.id, InnerState(run_));
  }
  return round_.difference(weight);
}

at::Tensor RepeatedRounds::sum_of(const LineageStep& round, std::vector<at::Tensor> differences) {
  if (outer_.coding.codec != collective::Codec::kNone) return coded_sum_of(round, differences);
  at::Tensor sum = std::move(differences.front());
  for (std::size_t i = 1; i < differences.size(); ++i) sum.add_(differences[i]);
  return sum;
}

at::Tensor RepeatedRounds::coded_sum_of(const LineageStep& round,
                                        const std::vector<at::Tensor>& differences) {
  const auto size = static_cast<int>(differences.size());
  const auto values = static_cast<std::size_t>(round_.values());
  at::Tensor sum = at::empty({round_.values()}, at::kFloat);
  std::vector<collective::CodedExchange> ranks;
  for (int i = 0; i < size; ++i) {
    collective::ErrorFeedback& feedback =
        feedback_.try_emplace(round.members[static_cast<std::size_t>(i)].id, values).first->second;
    collective::Operation operation{
        .kind = collective::Kind::kAllReduce,
        .type = ElementType::kF32,
        .buffer = {.input = differences[static_cast<std::size_t>(i)].const_data_ptr(),
                   .output = sum.data_ptr(),
                   .count = values},
        .coding = outer_.coding};
    operation.coding.key = outer_.coding.key.child(static_cast<std::uint64_t>(round.step));
    const collective::CodedFeedback residuals = feedback.begin(operation.coding, size, i);
    operation.feedback = &residuals;
    ranks.emplace_back(operation, i, size);
  }
  exchange(ranks);
  for (const LineageMember& member : round.members) feedback_.at(member.id).commit();
  return sum;
}

/// Returns the samples of a member in each step.
SampleRange RepeatedRounds::samples_of(const LineageStep& round,
                                       const LineageMember& member) const {
  return {member.first_sample - run_.record.samples, member.samples / round.steps};
}

/// The members of a round have whole micro-batches of each step, none of them twice; those of
/// members that were lost are left out.
void RepeatedRounds::check(const LineageStep& round) const {
  std::int64_t next = 0;
  for (std::size_t i = 0; i < round.members.size(); ++i) {
    const LineageMember& member = round.members[i];
    if (member.samples == 0) continue;
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::kData, "replay",
                  fmt::format("steps {} to {}: member {} of {} {}", round.behind() + 1, round.step,
                              i + 1, round.members.size(), what));
    };
    const SampleRange samples = samples_of(round, member);
    const bool is_whole = member.samples % (round.steps * plan_.micro_batch) == 0;
    if (!is_whole || samples.first < next || samples.first + samples.count > run_.batch.global) {
      refuse(
          fmt::format("has samples {} to {} of each {}, of which {} are of others, in parts of {}",
                      samples.first, samples.first + samples.count, run_.batch.global, next,
                      plan_.micro_batch));
    }
    if (member.threads <= 0) refuse(fmt::format("has {} threads", member.threads));
    if (!member.is_new && !inner_.contains(member.id))
      refuse("has an optimizer that began before the first round of the lineage");
    next = samples.first + samples.count;
  }
  if (next > 0) return;
  throw Error(ErrorKind::kData, "replay",
              fmt::format("steps {} to {}: no member has trained any samples", round.behind() + 1,
                          round.step));
}

}  // namespace shoal::train
