#pragma once

#include "shoal/base/clock.h"

namespace shoal::wire {

/// Returns how long a peer that is so far away may be silent before it is lost, where nobody says:
/// two seconds and twenty round trips, at most 15 s. Peers say something every 0.4 seconds. TCP
/// brings a lost packet again after one or two round trips, and waits twice as long each time that
/// this is lost as well: twenty are enough for four times in a row.
Duration silence_for(Duration round_trip);

}  // namespace shoal::wire
