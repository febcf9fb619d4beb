#include "shoal/base/for_each_index.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace shoal {

void for_each_index(std::size_t count, int threads, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first;
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
  try {
    for (int i = 1; i < threads && static_cast<std::size_t>(i) < count; ++i)
      workers.emplace_back(work);
  } catch (const std::system_error&) {
    // A limit of processes, or of memory for stacks: those that there are do all of it.
  }
  work();
  workers.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace shoal
