#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <random>
#include <thread>

#include "tests/collective/connections_here.h"
#include "tests/collective/network_ranks.h"

namespace shoal::collective {

/// Breaks connections of this process at random while ranks run. It breaks so many for each
/// operation that they complete and no more: on a busy machine operations take long, and what
/// breaks faster than it is replaced would let none complete.
class RandomResets {
 public:
  struct Options {
    int ranks;
    std::chrono::milliseconds pause;  ///< between two
    int for_each_operation = 12;
  };
  explicit RandomResets(const Options& options)
      : options_(options), allowed_(options.for_each_operation) {}

  /// Says that one of the ranks runs, until it leaves that in whatever way: an exception, too.
  class Running {
   public:
    explicit Running(RandomResets& resets) : resets_(resets) { ++resets_.running_; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running() { resets_.over_ = true; }

   private:
    RandomResets& resets_;
  };

  void one_is_complete() { allowed_ += options_.for_each_operation; }
  int count() const { return count_; }

  /// Breaks connections from when all ranks run to when the first one is done.
  void run() {
    const Deadline end = soon();
    while (running_ < options_.ranks && !over_ && !end.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (running_ < options_.ranks) return;
    std::mt19937 random(11);
    while (!over_) {
      std::this_thread::sleep_for(options_.pause);
      if (count_ >= allowed_) continue;
      const auto all = connections(false);
      if (!all.empty()) count_ += break_connection(all[random() % all.size()]) ? 1 : 0;
    }
  }

 private:
  const Options options_;
  std::atomic<int> running_{0};
  std::atomic<bool> over_{false};
  std::atomic<int> allowed_;
  std::atomic<int> count_{0};
};

}  // namespace shoal::collective
