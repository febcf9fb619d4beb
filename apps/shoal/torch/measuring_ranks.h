#pragma once

#include <functional>

#include "apps/shoal/torch/entry.h"
#include "shoal/comm/group.h"

namespace shoal::apps {

/// Runs `body` on every rank at the same time, over the arena, so that memory lies as it does in
/// training, without autograd, and with each rank on its own cores.
void on_measuring_ranks(const MeasuringRanks& by,
                        const std::function<void(const comm::Group& group)>& body);

/// Returns the median time of one call on this rank, after three that do not count. All ranks of
/// `group` measure at the same time: they compete for memory as in training.
double median_s(const comm::Group& group, double seconds, const std::function<void()>& call);

}  // namespace shoal::apps
