#pragma once

#include <cstddef>
#include <string>

#include "shoal/comm/world.h"

namespace shoal::comm {

/// The ranks that an MPI launcher has started, over MPI: `connect` with Transport::kMpi. No memory
/// is shared. Initialises MPI unless the program has; it is finalised with the last group. Thread
/// level MPI_THREAD_SERIALIZED is needed. Throws Error(config) in builds without MPI, and when MPI
/// counts ranks differently from `options`. `largest_count`: what a call of MPI may count; for
/// tests.
Group connect_over_mpi(const WorldOptions& options, std::size_t largest_count = 0x7fffffff);

/// The MPI that Shoal is built with ("Open MPI v4.1.4"); empty in builds without.
std::string mpi_library();

}  // namespace shoal::comm
