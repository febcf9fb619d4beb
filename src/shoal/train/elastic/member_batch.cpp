#include "shoal/train/elastic/member_batch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/even_part.h"

namespace shoal::train {

BatchPlan plan_of_members(const BatchPlan& plan, const parallel::BatchShare& share) {
  BatchPlan of_members = plan;
  of_members.micro_batch *= share.ranks();
  return of_members;
}

SampleRange samples_of_rank(const BatchPlan& plan, const SampleRange& of_member,
                            const parallel::BatchShare& share) {
  const std::int64_t count = of_member.count / share.ranks();
  SHOAL_CHECK(count % plan.micro_batch == 0 && count * share.ranks() == of_member.count,
              "{} samples are no whole micro-batches of {} ranks", of_member.count, share.ranks());
  return {of_member.first + share.rank() * count, count};
}

SampleRange samples_of_member(const BatchPlan& plan, std::int64_t member, std::int64_t members) {
  const auto [begin, end] = even_part_of(plan.accumulation, members, member);
  return {begin * plan.micro_batch, (end - begin) * plan.micro_batch};
}

// By the largest remainders: whole parts first, and what is left to those that miss most.
std::vector<SampleRange> samples_by_speed(const BatchPlan& plan,
                                          const std::vector<double>& speeds) {
  const auto members = static_cast<std::int64_t>(speeds.size());
  const std::int64_t least = plan.accumulation >= members ? 1 : 0;
  const std::int64_t rest = plan.accumulation - least * members;
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<std::int64_t> counts;
  std::vector<std::pair<double, std::int64_t>> missing;  ///< negative, by member
  for (std::int64_t i = 0; i < members; ++i) {
    const double quota = speeds[static_cast<std::size_t>(i)] / all * static_cast<double>(rest);
    counts.push_back(least + static_cast<std::int64_t>(quota));
    missing.emplace_back(std::floor(quota) - quota, i);
  }
  std::sort(missing.begin(), missing.end());
  std::int64_t left = plan.accumulation - std::accumulate(counts.begin(), counts.end(), 0LL);
  for (const auto& [negative, member] : missing)
    if (left-- > 0) ++counts[static_cast<std::size_t>(member)];
  std::vector<SampleRange> ranges;
  std::int64_t first = 0;
  for (const std::int64_t count : counts) {
    ranges.push_back({first, count * plan.micro_batch});
    first += ranges.back().count;
  }
  return ranges;
}

RankBatch member_batch(const DataSource& data, std::int64_t first, const BatchPlan& plan,
                       const SampleRange& samples) {
  RankBatch batch;
  batch.first_sample = samples.first;
  for (std::int64_t done = 0; done < samples.count; done += plan.micro_batch)
    batch.micro_batches.push_back(data.training(first + samples.first + done, plan.micro_batch));
  return batch;
}

}  // namespace shoal::train
