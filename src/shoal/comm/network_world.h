#pragma once

#include "shoal/comm/world.h"

namespace shoal::comm {

/// Connects ranks that may be on several hosts. The rendezvous is at options.rendezvous (empty: at
/// a file of this host). Ranks that all share one host get shared memory; ranks of which no two
/// share a host, and all ranks with Transport::kTcp, get TCP; the others get a hierarchy of both.
Group connect_over_network(const WorldOptions& options);

}  // namespace shoal::comm
