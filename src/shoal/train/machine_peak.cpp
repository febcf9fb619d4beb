#include "shoal/train/machine_peak.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/duration.h"
#include "shoal/base/plain_loops.h"

namespace shoal::train {
namespace {

constexpr std::int64_t kCacheLine = 64;  // bytes
constexpr std::int64_t kLeastThreadBytes = 1024;
/// The clock may see no time in less.
constexpr double kLeastSeconds = 1e-8;

struct FreeLoopMemory {
  void operator()(float* memory) const { std::free(memory); }
};
using LoopMemory = std::unique_ptr<float[], FreeLoopMemory>;

/// Returns memory that nobody has touched.
LoopMemory allocate_untouched(std::int64_t elements) {
  constexpr std::size_t kPage = 4096;
  const std::size_t bytes =
      (static_cast<std::size_t>(elements) * sizeof(float) + kPage - 1) / kPage * kPage;
  LoopMemory memory(static_cast<float*>(std::aligned_alloc(kPage, bytes)));
  if (!memory) throw std::bad_alloc();
  return memory;
}

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

double measure_plain_flops(Duration budget, ElementType type) {
  // Each thread has a cache line of its own to write to.
  constexpr std::size_t kApart = 16;
  std::vector<float> results(static_cast<std::size_t>(at::get_num_threads()) * kApart);
  // A quarter of a millisecond on a slow core.
  constexpr std::int64_t kRounds = 40'000;
  const auto loop =
      type == ElementType::kBF16 ? plain_loops::multiply_add_bf16 : plain_loops::multiply_add;
  return best_rate(budget, [&](std::int64_t thread) {
    return loop(kRounds, &results[static_cast<std::size_t>(thread) * kApart]);
  });
}

double measure_plain_bandwidth(Duration budget, MemoryLoop loop, std::int64_t thread_bytes) {
  SHOAL_USER_CHECK(thread_bytes >= kLeastThreadBytes, "measure", "{} bytes a thread: {} at least",
                   thread_bytes, kLeastThreadBytes);
  const std::int64_t threads = at::get_num_threads();
  // Halves are whole cache lines, so that no two threads write to one.
  const std::int64_t half = thread_bytes / 2 / kCacheLine * (kCacheLine / 4);
  const LoopMemory memory = allocate_untouched(2 * half * threads);
  const auto part = [&](std::int64_t thread) { return memory.get() + 2 * half * thread; };
  const auto run = [&](std::int64_t thread) {
    float* const x = part(thread);
    float* const y = x + half;
    const auto count = static_cast<std::size_t>(half);
    switch (loop) {
      case MemoryLoop::kRead: {
        float sum = 0;
        const double bytes = plain_loops::read(x, 2 * count, &sum);
        // Written, so that the loop has a purpose.
        x[0] = sum == 1 ? 1 : 0;
        return bytes;
      }
      case MemoryLoop::kWrite:
        return plain_loops::write(0, x, 2 * count);
      case MemoryLoop::kCopy:
        return plain_loops::copy(x, y, count);
      case MemoryLoop::kUpdate:
        return plain_loops::axpy(x, y, count);
    }
    return 0.0;
  };
  // A page lies near the core that writes to it first.
  at::parallel_for(0, threads, 1, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t thread = first; thread < end; ++thread)
      plain_loops::write(0, part(thread), static_cast<std::size_t>(2 * half));
  });
  // All threads start and end a run together, which takes its time, and more where others use a
  // core too: a run lasts an eighth of the budget, however small the part of memory is.
  const auto begin = Clock::now();
  run(0);
  const double once_s = std::max(to_seconds(Clock::now() - begin), kLeastSeconds);
  const auto passes = static_cast<std::int64_t>(std::max(1.0, to_seconds(budget) / 8 / once_s));
  return best_rate(budget, [&](std::int64_t thread) {
    double bytes = 0;
    for (std::int64_t pass = 0; pass < passes; ++pass) bytes += run(thread);
    return bytes;
  });
}

double measure_plain_bandwidth(Duration budget) {
  constexpr std::int64_t kBytes = 96'000'000;
  return measure_plain_bandwidth(
      budget, MemoryLoop::kUpdate,
      std::max<std::int64_t>(kBytes / at::get_num_threads(), kLeastThreadBytes));
}

}  // namespace shoal::train
