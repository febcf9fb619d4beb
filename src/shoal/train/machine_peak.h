#pragma once

#include <cstdint>

#include "shoal/base/clock.h"
#include "shoal/base/element_type.h"

namespace shoal::train {

// A rank reaches this with all its threads, by plain loops (base/plain_loops.h). The best of many
// short runs counts: a peak is what the machine can do, and interruptions only lower it.

/// Measures FLOP/s of multiply-adds in registers, for about `budget`. `type`: kF32, or kBF16 with
/// float32 sums.
double measure_plain_flops(Duration budget, ElementType type = ElementType::kF32);

/// A plain loop does this with memory. Its bytes are those that the program reads and writes.
enum class MemoryLoop {
  kRead,
  kWrite,
  kCopy,
  kUpdate,  ///< y += 3 x in place: two reads and a write
};

/// Measures bytes/s of a loop, for about `budget` and at least once, in which each thread goes
/// again and again through `thread_bytes` bytes of its own, which it was the first to touch. Throws
/// Error(usage) for fewer bytes than 1024. Takes that memory meanwhile; throws std::bad_alloc where
/// there is none.
double measure_plain_bandwidth(Duration budget, MemoryLoop loop, std::int64_t thread_bytes);
/// Measures kUpdate in 96 MB of all threads: more than the caches of most processors.
double measure_plain_bandwidth(Duration budget);

}  // namespace shoal::train
