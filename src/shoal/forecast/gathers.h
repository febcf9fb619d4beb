#pragma once

#include <string>
#include <vector>

#include "shoal/forecast/plan_names.h"
#include "shoal/schedule/sharding.h"

namespace shoal::forecast {

/// The order in which ZeRO-3 gathers units of parameters and releases them in one micro-batch.
/// Units are the embedding, the blocks and the head, modules the model itself and those; a tied
/// head reads the embedding too. Empty where nothing is gathered: below stage 3, and where the
/// ranks of Shoal that share a host read one copy in place.
std::vector<schedule::ShardAction> gather_table(const ModelSpec& spec, const Training& training,
                                                const Cluster& cluster);

/// "gather embedding", "forward blocks.0": an action in the names of the model.
std::string describe(const schedule::ShardAction& action, const ModelSpec& spec);

}  // namespace shoal::forecast
