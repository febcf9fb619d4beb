#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "apps/shoal/torch/entry.h"
#include "apps/shoal/torch/measuring_ranks.h"
#include "shoal/base/duration.h"
#include "shoal/train/machine_peak.h"

namespace shoal::apps {
namespace {

std::vector<forecast::TimedWork> traversals(const comm::Group& group, double seconds) {
  std::vector<forecast::TimedWork> samples;
  // The smallest for what an operation costs by itself, the others beyond every cache.
  for (const std::int64_t count : {1 << 10, 1 << 23, 1 << 24, 1 << 25}) {
    const at::Tensor a = at::ones({count});
    const at::Tensor b = at::ones({count});
    at::Tensor out = at::empty({count});
    const double time = median_s(group, seconds, [&] { at::add_out(out, a, b); });
    samples.push_back({12.0 * static_cast<double>(count), time});
  }
  return samples;
}

}  // namespace
}  // namespace shoal::apps

int shoal_memory_main(shoal::apps::MemoryArguments* arguments) {
  using namespace shoal;
  using namespace shoal::apps;
  using train::MemoryLoop;
  const Duration budget = from_seconds(arguments->by.seconds);
  // On this thread and before the ranks, whose threads keep to cores.
  for (LoopRate& loop : arguments->loops) {
    at::set_num_threads(loop.threads);
    const auto rate = [&](MemoryLoop kind) {
      return train::measure_plain_bandwidth(budget, kind, loop.thread_bytes);
    };
    loop.read = rate(MemoryLoop::kRead);
    loop.write = rate(MemoryLoop::kWrite);
    loop.copy = rate(MemoryLoop::kCopy);
  }
  on_measuring_ranks(arguments->by, [&](const comm::Group& group) {
    const auto moved = traversals(group, arguments->by.seconds);
    if (group.rank() == 0) arguments->traversals = moved;
  });
  return 0;
}
