#pragma once

#include <string>
#include <vector>

#include "shoal/wire/key_values.h"

namespace shoal::wire {

/// Proposes which ranks lie on one host: returns a number by rank. Ranks have the same number when
/// one running kernel serves them in the same namespaces of processes and files, under the same
/// user, and they give the same `name` (tests give several names to play several hosts on one).
/// All ranks exchange this through the store. `local_rendezvous` then proves that memory is shared,
/// and `agree_on_hosts` withdraws the hosts where it was not.
std::vector<int> propose_hosts(KeyValues& store, int rank, int size, const std::string& name,
                               Deadline deadline);

/// Returns the proposal without the hosts on which the rendezvous of some rank was not `proven`:
/// each rank of such a host counts as a host of its own. Collective.
std::vector<int> agree_on_hosts(KeyValues& store, int rank, const std::vector<int>& proposed,
                                bool proven, Deadline deadline);

}  // namespace shoal::wire
