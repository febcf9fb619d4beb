#pragma once

#include <atomic>
#include <cstdint>

/// A stream of the fake NCCL: the works that it was given, and those that are done, in order.
struct FakeStream {
  std::atomic<std::uint64_t> given = 0;
  std::atomic<std::uint64_t> done = 0;
};
