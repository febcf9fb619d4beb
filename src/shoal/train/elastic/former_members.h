#pragma once

#include <string>
#include <vector>

#include "shoal/wire/address.h"

namespace shoal::train {

// A member of an elastic group keeps the addresses of the others in its run directory, so that its
// process finds them when it comes back.

/// Writes them whole or not at all, a line each. Throws Error(output).
void write_former_members(const std::string& path, const std::vector<wire::Endpoint>& members);
/// Returns none where there is no file. Throws Error(data) for a line that is no address.
std::vector<wire::Endpoint> read_former_members(const std::string& path);

/// Returns those addresses at which somebody may be: all but those of which the host says that
/// nobody listens. Takes up to two seconds.
std::vector<wire::Endpoint> not_refused(const std::vector<wire::Endpoint>& members);

}  // namespace shoal::train
