#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "python/src/host_work.h"
#include "python/src/options.h"
#include "python/src/progress.h"

namespace shoal::python {

/// Brings `size` ranks on any hosts together through PyTorch's store, which carries the name of
/// their meeting, its key, and what they say of themselves. Installs the arena as LibTorch's CPU
/// allocator. What they do is recorded, and written to `options.flight_directory` (unless it is
/// empty) when it fails. Throws Error(config) for an interface that there is not.
std::shared_ptr<Channel> meet_through(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                      int size, Duration timeout, const ShoalOptions& options);

/// `members`, ranks of the meeting of `met`, meet anew, for the `time`th time. Where all lie on one
/// host nothing is asked of a store, which may have been the business of a rank that is gone; else
/// it is the one through which they met.
std::shared_ptr<Channel> meet_again(const Channel& met, const std::vector<int>& members, int time,
                                    Duration timeout, const ShoalOptions& options);

/// A further group among ranks that have met: `members` are ranks of that first meeting, in the new
/// group's order; nobody else takes part.
std::shared_ptr<Channel> join_through(const c10::intrusive_ptr<c10d::Store>& store,
                                      const Channel& met, const std::vector<int>& members,
                                      Duration timeout);

}  // namespace shoal::python
