#include "shoal/wire/at_once.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace shoal::wire {

void at_once(int count, int most_threads, const std::function<void(int)>& body) {
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr failed;
  const auto some = [&] {
    for (int i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed) failed = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> helpers;
  const int wanted = std::min(count, most_threads) - 1;
  helpers.reserve(static_cast<std::size_t>(std::max(wanted, 0)));
  try {
    for (int i = 0; i < wanted; ++i) helpers.emplace_back(some);
  } catch (const std::system_error&) {
    // A limit of processes, or of memory for stacks: those that there are do all of it.
  }
  some();
  for (std::thread& helper : helpers) helper.join();
  if (failed) std::rethrow_exception(failed);
}

}  // namespace shoal::wire
