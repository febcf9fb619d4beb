#pragma once

#include "shoal/collective/operation.h"

namespace shoal::collective {

/// Throws Error(usage) for an operation that makes no sense among `size` ranks without shared
/// memory, or that no communicator folds. `carrier` is what the message calls that which carries
/// host memory only: "TCP".
void check_operation(const Operation& operation, int rank, int size, const char* carrier);

}  // namespace shoal::collective
