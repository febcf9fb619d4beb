#include "shoal/train/elastic/member_batch.h"

#include "shoal/base/even_part.h"

namespace shoal::train {

SampleRange samples_of_member(const BatchPlan& plan, std::int64_t member, std::int64_t members) {
  const auto [begin, end] = even_part_of(plan.accumulation, members, member);
  return {begin * plan.micro_batch, (end - begin) * plan.micro_batch};
}

RankBatch member_batch(const DataSource& data, std::int64_t first, const BatchPlan& plan,
                       std::int64_t member, std::int64_t members) {
  const SampleRange samples = samples_of_member(plan, member, members);
  RankBatch batch;
  batch.first_sample = samples.first;
  for (std::int64_t done = 0; done < samples.count; done += plan.micro_batch)
    batch.micro_batches.push_back(data.training(first + samples.first + done, plan.micro_batch));
  return batch;
}

}  // namespace shoal::train
