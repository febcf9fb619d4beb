#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "python/src/host_work.h"
#include "python/src/options.h"
#include "python/src/progress.h"

namespace shoal::python {

/// Brings `size` ranks on any hosts together through PyTorch's store, which carries the name of
/// their rendezvous, its key, and the host and address of each rank. Installs the arena as
/// LibTorch's CPU allocator. Operations are recorded; when one fails, the record is written to
/// `options.flight_directory` unless that is empty. Throws Error(config) when the interface does
/// not exist.
std::shared_ptr<Channel> rendezvous(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                    int size, Duration timeout, const ShoalOptions& options);

/// Brings `members`, ranks of the rendezvous of `met`, together in a new one, the `time`th. Ranks
/// that all share one host use no store, because the rank that served it may be gone; other ranks
/// use the store of their first rendezvous.
std::shared_ptr<Channel> rendezvous_again(const Channel& met, const std::vector<int>& members,
                                          int time, Duration timeout, const ShoalOptions& options);

/// Makes a further group among ranks that have had their rendezvous: `members` are their ranks
/// there, in the new group's order; no other rank takes part.
std::shared_ptr<Channel> new_group(const c10::intrusive_ptr<c10d::Store>& store, const Channel& met,
                                   const std::vector<int>& members, Duration timeout);

}  // namespace shoal::python
