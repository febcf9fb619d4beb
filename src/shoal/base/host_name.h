#pragma once

#include <string>

namespace shoal {

/// Returns the name of this host, as `hostname` prints it; empty when the system gives none.
std::string host_name();

}  // namespace shoal
