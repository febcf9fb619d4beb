#pragma once

#include "shoal/comm/world.h"

namespace shoal::comm {

/// `connect` for ranks that may lie on several hosts: they meet at options.rendezvous (empty: at a
/// file of this host). Ranks of which no two share a host, and all with Transport::kTcp, get TCP;
/// ranks that all share one get shared memory; the others a hierarchy of both.
Group connect_over_network(const WorldOptions& options);

}  // namespace shoal::comm
