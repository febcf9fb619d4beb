#pragma once

#include "shoal/base/clock.h"

namespace shoal::wire {

/// Returns the round trip that the kernel measures on a connected socket: where nothing was sent
/// yet, that of the connecting packet. Zero where it has measured none.
Duration round_trip_of(int socket);
/// Returns the shortest one that it has measured on that socket in the last five minutes: how long
/// the way takes when nothing waits on it.
Duration least_round_trip_of(int socket);

}  // namespace shoal::wire
