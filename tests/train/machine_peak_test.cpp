// Plain loops on several threads. How fast they are is the machine's; that all of them run and what
// they refuse is ours.
#include "shoal/train/machine_peak.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::train::machine_peak_test {
namespace {

TEST(MachinePeak, EveryLoopRunsOnAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    for (const MemoryLoop loop :
         {MemoryLoop::kRead, MemoryLoop::kWrite, MemoryLoop::kCopy, MemoryLoop::kUpdate}) {
      // Sizes that no cache line, page or half divides.
      for (const std::int64_t bytes : {1024, 4099, 70'001})
        EXPECT_GT(measure_plain_bandwidth(Duration::zero(), loop, bytes), 0);
    }
    for (const ElementType type : {ElementType::kF32, ElementType::kBF16})
      EXPECT_GT(measure_plain_flops(Duration::zero(), type), 0);
  }
  at::set_num_threads(threads);
  EXPECT_THROW(measure_plain_bandwidth(Duration::zero(), MemoryLoop::kRead, 1023), Error);
}

}  // namespace
}  // namespace shoal::train::machine_peak_test
