#pragma once

#include <string>
#include <vector>

#include "shoal/wire/key_values.h"

namespace shoal::wire {

/// Which ranks may lie on one host: by rank a number, the same for those that the same running
/// kernel serves in the same namespaces of processes and files, under the same user, and that give
/// the same `name` (tests play several hosts on one by giving different ones). It is a proposal,
/// made through the store by all ranks: that memory is shared is proven by `meet`, and
/// `agree_on_hosts` says for whom it was.
std::vector<int> propose_hosts(KeyValues& store, int rank, int size, const std::string& name,
                               Deadline deadline);

/// The proposal, less those hosts of which a rank says that its meeting was not `proven`: their
/// ranks stand alone. Collective.
std::vector<int> agree_on_hosts(KeyValues& store, int rank, const std::vector<int>& proposed,
                                bool proven, Deadline deadline);

}  // namespace shoal::wire
