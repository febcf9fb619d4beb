#pragma once

#include <cstddef>
#include <string>

#include "shoal/comm/world.h"

namespace shoal::comm {

/// Connects the ranks that an MPI launcher has started, over MPI: `connect` with Transport::kMpi.
/// No memory is shared. Initialises MPI unless the program has, at thread level
/// MPI_THREAD_SERIALIZED; MPI is finalised with the last group. Throws Error(config) in builds
/// without MPI, and when MPI counts ranks differently from `options`. Tests lower `largest_count`,
/// the number of elements that one call of MPI may count.
Group connect_over_mpi(const WorldOptions& options, std::size_t largest_count = 0x7fffffff);

/// Names the MPI that Shoal is built with ("Open MPI v4.1.4"); empty in builds without MPI.
std::string mpi_library();

}  // namespace shoal::comm
