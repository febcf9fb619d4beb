#include "apps/shoal/torch/measuring_ranks.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "apps/shoal/cores.h"
#include "shoal/base/clock.h"
#include "shoal/base/duration.h"
#include "shoal/comm/world.h"

namespace shoal::apps {

void on_measuring_ranks(const MeasuringRanks& by,
                        const std::function<void(const comm::Group& group)>& body) {
  comm::WorldOptions options;
  options.size = by.ranks;
  comm::run_on_threads(options, [&](const comm::Group& group) {
    const c10::AutoGradMode no_gradient(false);
    // Each thread is a rank: it keeps to its cores, and so do the threads that LibTorch starts for
    // it.
    if (!by.cores.empty()) keep_to(by.cores[static_cast<std::size_t>(group.rank())]);
    at::set_num_threads(by.threads);
    body(group);
  });
}

double median_s(const comm::Group& group, double seconds, const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  group.barrier();
  std::vector<double> times;
  const Deadline deadline = Deadline::in(from_seconds(seconds));
  while (times.size() < 5 || !deadline.passed()) {
    const auto start = Clock::now();
    call();
    times.push_back(to_seconds(Clock::now() - start));
  }
  group.barrier();
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace shoal::apps
