#include <cstdio>

#include "shoal/collective/algorithm/ring.h"

// Prints how many elements a rank of four sends in a ring all-reduce of 1,000: 2 (p - 1) / p of
// them.
int main() {
  const shoal::collective::StepTable table = shoal::collective::ring_all_reduce(4, 1000);
  std::size_t sent = 0;
  for (const shoal::collective::Step& step : table.front()) {
    if (step.action == shoal::collective::Action::kSend) sent += step.range.size();
  }
  std::printf("%zu\n", sent);
}
