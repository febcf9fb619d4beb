#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "python/src/host_work.h"
#include "python/src/progress.h"

namespace shoal::python {

/// Brings `size` ranks of this host together through PyTorch's store, which carries the name of their meeting and its key. Installs the arena as
/// LibTorch's CPU allocator. What they do is recorded, and written to `flight_directory` (unless it is empty) when it fails. Throws Error(usage) on
/// every rank when they do not run on one host.
std::shared_ptr<Channel> meet_through(c10d::Store& store, int rank, int size, Duration timeout, const std::string& flight_directory);

/// The same where all know the place already: nothing else is asked. `flight_directory` as above.
std::shared_ptr<Channel> meet_at(const Place& place, int rank, int size, Duration timeout, const std::string& flight_directory);

/// A further group among ranks that have met: `members` are ranks of that first meeting, in the new group's order. The store carries the place of
/// its shared memory.
std::shared_ptr<Channel> join_through(c10d::Store& store, const Channel& met, const std::vector<int>& members, Duration timeout);

}  // namespace shoal::python
