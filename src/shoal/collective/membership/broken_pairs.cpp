#include "shoal/collective/membership/broken_pairs.h"

#include <algorithm>
#include <map>
#include <vector>

namespace shoal::collective::membership {

void BrokenPairs::begin(const View& view, Clock::time_point now) {
  begun_ = now;
  watched_ = now;
  broken_.clear();
  std::erase_if(since_, [&](const auto& entry) {
    return !view.has_member(entry.first.first) || !view.has_member(entry.first.second);
  });
}

void BrokenPairs::watch(const View& view, const Suspicion& suspicion, Clock::time_point now) {
  // The time in which this process stood still itself counts for nothing: what others have said
  // meanwhile is not read yet.
  const Duration pause = now - watched_;
  if (pause > beat_)
    for (auto& [pair, since] : since_) since += pause;
  watched_ = now;
  broken_.clear();
  for (const Pair& pair : suspicion.broken_pairs(now)) {
    // Steps are computed without witnesses.
    if (!view.has_member(pair.first) || !view.has_member(pair.second)) continue;
    broken_.insert(pair);
    since_.try_emplace(pair, now);
  }
  if (now - begun_ < noticed_after_) return;
  std::erase_if(since_, [&](const auto& entry) { return !broken_.contains(entry.first); });
}

std::set<MemberId> BrokenPairs::to_remove(const View& view, const std::set<MemberId>& gone,
                                          Duration patience) const {
  std::set<MemberId> removed;
  std::set<MemberId> lost = gone;
  for (;;) {
    const std::map<MemberId, int> missing = missing_connections(lost, patience);
    const Member* chosen = nullptr;
    int most = 0;
    for (const Member& member : view.members) {
      const auto entry = missing.find(member.id);
      if (entry == missing.end() || entry->second < most || !may_lose(view, lost, member.id))
        continue;
      chosen = &member;
      most = entry->second;
    }
    if (!chosen) return removed;
    removed.insert(chosen->id);
    lost.insert(chosen->id);
  }
}

// How many connections are missing now to each of those that have missed one for long.
std::map<MemberId, int> BrokenPairs::missing_connections(const std::set<MemberId>& without,
                                                         Duration patience) const {
  std::map<MemberId, int> missing;
  const auto is_left = [&](const Pair& pair) {
    return !without.contains(pair.first) && !without.contains(pair.second);
  };
  for (const Pair& pair : broken_) {
    const auto since = since_.find(pair);
    if (since == since_.end() || watched_ - since->second < patience || !is_left(pair)) continue;
    missing[pair.first] = 0;
    missing[pair.second] = 0;
  }
  for (const Pair& pair : broken_) {
    if (!is_left(pair)) continue;
    for (const MemberId& id : {pair.first, pair.second})
      if (const auto entry = missing.find(id); entry != missing.end()) ++entry->second;
  }
  return missing;
}

// Somebody else must have the state, and most keepers must decide on a view without this one.
bool BrokenPairs::may_lose(const View& view, const std::set<MemberId>& lost, const MemberId& id) {
  const auto stays = [&](const MemberId& other) { return other != id && !lost.contains(other); };
  const std::vector<Member> established = view.established();
  if (std::none_of(established.begin(), established.end(),
                   [&](const Member& member) { return stays(member.id); }))
    return false;
  if (!view.is_kept_by(id)) return true;
  const auto keepers = std::count_if(view.keepers.begin(), view.keepers.end(), stays);
  return 2 * static_cast<std::size_t>(keepers) > view.keepers.size();
}

std::vector<MemberId> BrokenPairs::apart_from(const MemberId& member, Duration longer) const {
  std::vector<MemberId> others;
  for (const auto& [pair, since] : since_) {
    if (watched_ - since < longer) continue;
    if (pair.first == member) others.push_back(pair.second);
    if (pair.second == member) others.push_back(pair.first);
  }
  return others;
}

}  // namespace shoal::collective::membership
