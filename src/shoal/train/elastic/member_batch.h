#pragma once

#include <cstdint>

#include "shoal/train/data_source.h"
#include "shoal/train/step.h"

namespace shoal::train {

/// Consecutive samples, counted within the global batch of a step.
struct SampleRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Returns the samples of member `member` of `members`: whole micro-batches of `plan`, which has
/// the step as one member would run it, as evenly as possible and in the order of the members. The
/// samples of a step are the same however many members there are. More members than micro-batches
/// leave some without any.
SampleRange samples_of_member(const BatchPlan& plan, std::int64_t member, std::int64_t members);

/// Returns that member's part of the global batch that begins with training sample `first`.
RankBatch member_batch(const DataSource& data, std::int64_t first, const BatchPlan& plan,
                       std::int64_t member, std::int64_t members);

}  // namespace shoal::train
