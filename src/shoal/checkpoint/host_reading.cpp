#include "shoal/checkpoint/host_reading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "shoal/base/philox.h"
#include "shoal/checkpoint/agreement.h"

namespace shoal::checkpoint {
namespace {

/// A text that is equal for two items when both are the same part of the same tensor.
std::string identity(const StateItem& item) {
  std::string text = fmt::format("{} {} {}", item.name, static_cast<int>(item.local.scalar_type()),
                                 item.global_shape);
  for (const mesh::Box& box : item.boxes) text += fmt::format(" {}-{}", box.begin, box.end);
  return text;
}

/// Groups items by the number of ranks that hold them. Ranks whose groups have equal identities
/// hold the same items in the same order.
std::map<int, std::vector<std::size_t>> by_replicas(const std::vector<StateItem>& items) {
  std::map<int, std::vector<std::size_t>> classes;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].replicas > 1 && items[i].local.numel() > 0)
      classes[items[i].replicas].push_back(i);
  }
  return classes;
}

}  // namespace

HostReading::HostReading(const std::vector<StateItem>& items, const comm::Group& group,
                         Duration timeout) {
  const comm::Group host = group.on_host();
  if (host.size() == 1) return;
  std::map<std::uint64_t, std::vector<std::size_t>> own;
  for (auto& [replicas, members] : by_replicas(items)) {
    Key key(static_cast<std::uint64_t>(replicas));
    for (const std::size_t i : members) key = key.child(identity(items[i]));
    own[key.value()] = std::move(members);
  }
  const auto said = agree(host, timeout, [&] {
    std::vector<std::uint64_t> keys;
    for (const auto& [key, members] : own) keys.push_back(key);
    return nlohmann::json(keys).dump();
  });
  std::map<std::uint64_t, int> holders;
  for (const std::string& keys : said) {
    for (const auto key : nlohmann::json::parse(keys).get<std::vector<std::uint64_t>>())
      ++holders[key];
  }
  // All ranks of the host hold the same map and walk it in the same order: `split` is collective,
  // also for ranks that take no part in the new group.
  for (const auto& [key, ranks] : holders) {
    if (ranks < 2) continue;
    const auto mine = own.find(key);
    Alike alike{
        .ranks = host.split(mine == own.end() ? -1 : 0, host.rank()), .items = {}, .readers = {}};
    if (mine == own.end()) continue;
    std::vector<std::size_t> bytes(static_cast<std::size_t>(ranks));
    for (const std::size_t i : mine->second) {
      // All holders compute the same readers from the same items.
      const auto reader = std::min_element(bytes.begin(), bytes.end());
      *reader += items[i].local.nbytes();
      alike.items.push_back(i);
      alike.readers.push_back(static_cast<int>(reader - bytes.begin()));
    }
    alike_.push_back(std::move(alike));
  }
}

bool HostReading::reads(std::size_t index) const {
  for (const Alike& alike : alike_) {
    const auto found = std::find(alike.items.begin(), alike.items.end(), index);
    if (found != alike.items.end()) {
      return alike.readers[static_cast<std::size_t>(found - alike.items.begin())] ==
             alike.ranks.rank();
    }
  }
  return true;
}

void HostReading::share(const std::vector<StateItem>& items) const {
  for (const Alike& alike : alike_) {
    for (std::size_t i = 0; i < alike.items.size(); ++i)
      alike.ranks.broadcast(items[alike.items[i]].local, alike.readers[i]);
  }
}

}  // namespace shoal::checkpoint
