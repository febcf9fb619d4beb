#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace shoal::data {

/// Calls `body(i)` for every i below `count` on up to `threads` threads. The first exception stops
/// the rest and is thrown to the caller.
inline void for_each_index(std::size_t count, int threads,
                           const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr first;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> workers;
  for (int i = 1; i < threads && static_cast<std::size_t>(i) < count; ++i)
    workers.emplace_back(work);
  work();
  workers.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace shoal::data
