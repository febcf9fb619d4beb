#pragma once

#include "shoal/plan/training.h"

namespace shoal::plan {

/// Returns the elements that a tensor-parallel rank of Shoal sends for one block and micro-batch,
/// by the moves of `training.division`: of x features of a token, a gather and a scattered sum send
/// (n - 1) / n, an exchange of one cut for another a n-th of that, and a sum that all ranks get
/// twice as much. The gradient of each travels as its values did. A block that keeps its input
/// alone sends forward twice; one that keeps products repeats all but the sums into the stream and
/// what a mixture's rank sends elsewhere.
///
/// Ranks that share memory (`share_memory`) copy what one cut has of another from where it lies.
/// Without parts of equal size a rank sends up to a padded part more.
double recipe_elements(const ModelSpec& spec, const Training& training, std::int64_t block,
                       Keep keep, bool share_memory);

}  // namespace shoal::plan
