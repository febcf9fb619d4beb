#include "shoal/collective/membership/suspicion.h"

#include <algorithm>

namespace shoal::collective::membership {
namespace {

bool watches(const View& view, const std::vector<MemberId>& everybody, std::size_t a,
             std::size_t b) {
  if (a == b) return false;
  if (view.is_kept_by(everybody[a]) || view.is_kept_by(everybody[b])) return true;
  const std::size_t ahead = (b + everybody.size() - a) % everybody.size();
  return ahead <= Suspicion::kSuccessors;
}

}  // namespace

void Suspicion::begin(const View& view, Clock::time_point now) {
  everybody_ = view.everybody();
  heard_.clear();
  watchers_.clear();
  accusations_.clear();
  const auto self = std::find(everybody_.begin(), everybody_.end(), self_);
  if (self == everybody_.end()) return;
  const auto place = static_cast<std::size_t>(self - everybody_.begin());
  for (std::size_t other = 0; other < everybody_.size(); ++other) {
    if (watches(view, everybody_, place, other)) heard_[everybody_[other]] = now;
    if (watches(view, everybody_, other, place)) watchers_.push_back(everybody_[other]);
  }
}

void Suspicion::heard(const MemberId& from, Clock::time_point now) {
  if (const auto entry = heard_.find(from); entry != heard_.end()) entry->second = now;
}

void Suspicion::accused(const MemberId& by, const std::vector<MemberId>& of) {
  if (of.empty()) {
    accusations_.erase(by);
  } else if (std::find(everybody_.begin(), everybody_.end(), by) != everybody_.end()) {
    accusations_[by] = of;
  }
}

bool Suspicion::accuses(const MemberId& of, Clock::time_point now) const {
  const auto entry = heard_.find(of);
  return entry != heard_.end() && now - entry->second > after_;
}

std::vector<MemberId> Suspicion::accusing(Clock::time_point now) const {
  std::vector<MemberId> silent;
  for (const auto& [other, heard] : heard_)
    if (now - heard > after_) silent.push_back(other);
  return silent;
}

bool Suspicion::is_edge_broken(const MemberId& a, const MemberId& b, Clock::time_point now) const {
  const auto has_accused = [&](const MemberId& by, const MemberId& of) {
    if (by == self_) return accuses(of, now);
    const auto entry = accusations_.find(by);
    return entry != accusations_.end() &&
           std::find(entry->second.begin(), entry->second.end(), of) != entry->second.end();
  };
  return has_accused(a, b) || has_accused(b, a);
}

Suspicion::Accusers Suspicion::accusers(Clock::time_point now) const {
  Accusers accusers;
  const auto add = [&](const MemberId& by, const std::vector<MemberId>& of) {
    for (const MemberId& other : of)
      if (by != other && std::find(everybody_.begin(), everybody_.end(), other) != everybody_.end())
        accusers[other].insert(by);
  };
  add(self_, accusing(now));
  for (const auto& [by, of] : accusations_) add(by, of);
  return accusers;
}

std::set<MemberId> Suspicion::gone(Clock::time_point now) const {
  const Accusers accusers = this->accusers(now);
  std::set<MemberId> gone;
  if (accusers.empty()) return gone;
  const auto is_enough = [&](std::size_t edges) {
    return edges >= 2 || (edges > 0 && edges + 1 >= everybody_.size() - gone.size());
  };
  const auto remaining = [&](const std::set<MemberId>& ids) {
    return static_cast<std::size_t>(std::count_if(
        ids.begin(), ids.end(), [&](const MemberId& id) { return !gone.contains(id); }));
  };
  // With each one that is gone fewer are left, so that others may be accused by all of them.
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [of, by] : accusers) {
      if (of == self_ || gone.contains(of) || !is_enough(remaining(by))) continue;
      gone.insert(of);
      changed = true;
    }
    if (changed) continue;
    for (const MemberId& accuser : everybody_) {
      if (accuser == self_ || gone.contains(accuser)) continue;
      const auto unheard_by_it_alone = [&](const auto& entry) {
        return !gone.contains(entry.first) && entry.second.contains(accuser) &&
               remaining(entry.second) == 1;
      };
      if (!is_enough(static_cast<std::size_t>(
              std::count_if(accusers.begin(), accusers.end(), unheard_by_it_alone))))
        continue;
      gone.insert(accuser);
      changed = true;
    }
  }
  return gone;
}

}  // namespace shoal::collective::membership
