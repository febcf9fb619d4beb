#pragma once

#include <cstdint>

#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// Returns the seconds in which a rank of a pipeline (rank 0 where there is none) sums the
/// gradients of its parameters with the ranks that hold the same ones. Without shards each
/// parameter is summed in place by a call of its own; otherwise each unit's are scattered to their
/// owners, those that the same ranks hold together.
double gradient_exchange(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                         std::int64_t rank);

/// Returns the seconds of a mean step in which a rank waits for the exchange of parameters between
/// members; 0 where there are none, or where training goes on meanwhile.
double member_exchange(const ModelSpec& spec, const Training& training, const Cluster& cluster);

/// Returns the seconds in which two stages' ranks sum the gradient of an embedding that both hold;
/// 0 where nobody does.
double tied_exchange(const ModelSpec& spec, const Training& training, const Cluster& cluster);

}  // namespace shoal::forecast
