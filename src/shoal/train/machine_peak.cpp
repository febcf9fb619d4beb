#include "shoal/train/machine_peak.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/base/plain_loops.h"

namespace shoal::train {
namespace {

/// Runs `work(thread)`, which returns how much it did, on every thread again and again, and returns
/// the best rate of all threads together.
template <class Work>
double best_rate(Duration budget, Work&& work) {
  const std::int64_t threads = at::get_num_threads();
  std::vector<double> done(static_cast<std::size_t>(threads));
  const Deadline deadline = Deadline::in(budget);
  double best = 0;
  do {
    const auto begin = Clock::now();
    at::parallel_for(0, threads, 1, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t thread = first; thread < end; ++thread)
        done[static_cast<std::size_t>(thread)] = work(thread);
    });
    const double seconds = to_seconds(Clock::now() - begin);
    double all = 0;
    for (const double one : done) all += one;
    best = std::max(best, all / seconds);
  } while (!deadline.passed());
  return best;
}

}  // namespace

double measure_plain_flops(Duration budget) {
  // Each thread has a cache line of its own to write to.
  constexpr std::size_t kApart = 16;
  std::vector<float> results(static_cast<std::size_t>(at::get_num_threads()) * kApart);
  // A quarter of a millisecond on a slow core.
  constexpr std::int64_t kRounds = 40'000;
  return best_rate(budget, [&](std::int64_t thread) {
    return plain_loops::multiply_add(kRounds, &results[static_cast<std::size_t>(thread) * kApart]);
  });
}

double measure_plain_bandwidth(Duration budget) {
  // Larger together than the caches of most processors.
  constexpr std::int64_t kElements = 12'000'000;
  const auto x = std::make_unique<float[]>(kElements);
  const auto y = std::make_unique<float[]>(kElements);
  const std::int64_t threads = at::get_num_threads();
  return best_rate(budget, [&](std::int64_t thread) {
    const std::int64_t begin = kElements * thread / threads;
    const std::int64_t end = kElements * (thread + 1) / threads;
    return plain_loops::axpy(x.get() + begin, y.get() + begin,
                             static_cast<std::size_t>(end - begin));
  });
}

}  // namespace shoal::train
