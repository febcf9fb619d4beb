#include "shoal/wire/silence.h"

#include <algorithm>
#include <chrono>

namespace shoal::wire {

Duration silence_for(Duration round_trip) {
  using std::chrono::seconds;
  return std::min<Duration>(seconds(2) + 20 * round_trip, seconds(15));
}

}  // namespace shoal::wire
