#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "shoal/base/clock.h"

namespace shoal::collective {

/// One collective of one rank, as somebody remembers it.
struct FlightEntry {
  int rank = 0;                ///< of the world
  std::uint64_t sequence = 0;  ///< in its group, counted from 1
  std::string call;            ///< "all_reduce of 5 x f32 by sum"
  Clock::time_point began{};
  Clock::time_point ended{};  ///< the epoch while it is not complete
};

/// What one group has done.
struct FlightPage {
  std::string group;         ///< the same on every rank that knows the group
  std::vector<int> members;  ///< ranks of the world
  std::vector<FlightEntry> entries;
};

/// Where the communicators of a process leave what they remember, so that it can still be read when
/// a failure has unwound them. Keeps the first group and the last kGroups. Threads: any.
class FlightBook {
 public:
  static constexpr std::size_t kGroups = 256;
  /// `entries` owns what it reads, and takes the place of what was there under the same name. It is
  /// called while other ranks go on, and says what it finds.
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
