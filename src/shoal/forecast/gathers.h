#pragma once

#include <string>
#include <vector>

#include "shoal/forecast/plan_names.h"
#include "shoal/schedule/sharding.h"

namespace shoal::forecast {

/// Returns the order in which ZeRO-3 gathers and releases units of parameters in one micro-batch.
/// Units are the embedding, the blocks and the head; modules are the model itself and these; a tied
/// head reads the embedding too. The table is empty where nothing is gathered: below stage 3, and
/// where the ranks of Shoal that share a host read one copy in place.
std::vector<schedule::ShardAction> gather_table(const ModelSpec& spec, const Training& training,
                                                const Cluster& cluster);

/// Returns an action in the names of the model: "gather embedding", "forward blocks.0".
std::string describe(const schedule::ShardAction& action, const ModelSpec& spec);

}  // namespace shoal::forecast
