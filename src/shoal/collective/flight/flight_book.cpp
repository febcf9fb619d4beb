#include "shoal/collective/flight/flight_book.h"

namespace shoal::collective {

void FlightBook::add(std::string group, std::vector<int> members,
                     std::function<std::vector<FlightEntry>()> entries) {
  const std::lock_guard lock(mutex_);
  // Ranks that are threads share one book and add the same group.
  std::erase_if(groups_, [&](const Group& known) { return known.name == group; });
  groups_.push_back({std::move(group), std::move(members), std::move(entries)});
  // The first group is that of all ranks, and is never dropped.
  if (groups_.size() > kGroups + 1) groups_.erase(groups_.begin() + 1);
}

std::vector<FlightPage> FlightBook::pages() const {
  const std::lock_guard lock(mutex_);
  std::vector<FlightPage> pages;
  for (const Group& group : groups_) pages.push_back({group.name, group.members, group.entries()});
  return pages;
}

}  // namespace shoal::collective
