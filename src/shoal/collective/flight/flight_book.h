#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "shoal/base/clock.h"

namespace shoal::collective {

/// The record of one collective on one rank.
struct FlightEntry {
  int rank = 0;                ///< in the world
  std::uint64_t sequence = 0;  ///< in its group, counted from 1
  std::string call;            ///< "all_reduce of 5 x f32 by sum"
  Clock::time_point began{};
  Clock::time_point ended{};  ///< the epoch while it is not complete
};

/// The records of one group.
struct FlightPage {
  std::string group;         ///< names the group, equal on all its ranks
  std::vector<int> members;  ///< ranks in the world
  std::vector<FlightEntry> entries;
};

/// Keeps the records of the communicators of a process, so that they can still be read after a
/// failure has destroyed the communicators. It keeps the first group and the last kGroups of the
/// others. Threads: any.
class FlightBook {
 public:
  static constexpr std::size_t kGroups = 256;
  /// Adds a group, in the place of one with the same name. `entries` returns its records: it owns
  /// what it reads, and is called while other ranks go on.
  void add(std::string group, std::vector<int> members,
           std::function<std::vector<FlightEntry>()> entries);
  std::vector<FlightPage> pages() const;

 private:
  struct Group {
    std::string name;
    std::vector<int> members;
    std::function<std::vector<FlightEntry>()> entries;
  };
  mutable std::mutex mutex_;
  std::deque<Group> groups_;
};

}  // namespace shoal::collective
