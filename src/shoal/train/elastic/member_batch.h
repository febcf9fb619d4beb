#pragma once

#include <cstdint>
#include <vector>

#include "shoal/parallel/batch_share.h"
#include "shoal/train/data_source.h"
#include "shoal/train/step.h"

namespace shoal::train {

/// Consecutive samples, counted within the global batch of a step.
struct SampleRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// Returns the plan of a step by members, whose ranks with samples of their own run a micro-batch
/// each at a time: these are one micro-batch of the member. `plan` has the step as one member would
/// run it, and `share` the part of one of its ranks.
BatchPlan plan_of_members(const BatchPlan& plan, const parallel::BatchShare& share);

/// Returns a rank's part of the samples of its member, which are whole micro-batches of
/// `plan_of_members`.
SampleRange samples_of_rank(const BatchPlan& plan, const SampleRange& of_member,
                            const parallel::BatchShare& share);

/// Returns the samples of member `member` of `members`: whole micro-batches of `plan`, which has
/// the step as one member would run it (`plan_of_members`), as evenly as possible and in the order
/// of the members. The samples of a step are the same however many members there are. More members
/// than micro-batches leave some without any.
SampleRange samples_of_member(const BatchPlan& plan, std::int64_t member, std::int64_t members);

/// Divides them among members of unequal speed: each gets a number of micro-batches in proportion
/// to its speed, in any unit above 0, and at least one where there are as many as members.
std::vector<SampleRange> samples_by_speed(const BatchPlan& plan, const std::vector<double>& speeds);

/// Returns these samples of the global batch that begins with training sample `first`.
RankBatch member_batch(const DataSource& data, std::int64_t first, const BatchPlan& plan,
                       const SampleRange& samples);

}  // namespace shoal::train
