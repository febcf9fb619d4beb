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
  keepers_ = view.keepers;
  watched_.clear();
  watchers_.clear();
  accusations_.clear();
  const auto self = std::find(everybody_.begin(), everybody_.end(), self_);
  if (self == everybody_.end()) return;
  const auto place = static_cast<std::size_t>(self - everybody_.begin());
  for (std::size_t other = 0; other < everybody_.size(); ++other) {
    if (watches(view, everybody_, place, other)) watched_[everybody_[other]] = {now};
    if (watches(view, everybody_, other, place)) watchers_.push_back(everybody_[other]);
  }
}

void Suspicion::heard(const MemberId& from, Clock::time_point now) {
  if (const auto entry = watched_.find(from); entry != watched_.end()) entry->second = {now};
}

void Suspicion::absent(const MemberId& who) {
  if (const auto entry = watched_.find(who); entry != watched_.end()) entry->second.absent = true;
}

bool Suspicion::is_silent(const Watched& watched, Clock::time_point now) const {
  return now - watched.heard > (watched.absent ? absent_after_ : after_);
}

void Suspicion::accused(const MemberId& by, const std::vector<MemberId>& of) {
  if (of.empty()) {
    accusations_.erase(by);
  } else if (contains(everybody_, by)) {
    accusations_[by] = of;
  }
}

bool Suspicion::accuses(const MemberId& of, Clock::time_point now) const {
  const auto entry = watched_.find(of);
  return entry != watched_.end() && is_silent(entry->second, now);
}

std::vector<MemberId> Suspicion::accusing(Clock::time_point now) const {
  std::vector<MemberId> silent;
  for (const auto& [other, watched] : watched_)
    if (is_silent(watched, now)) silent.push_back(other);
  return silent;
}

bool Suspicion::is_edge_broken(const MemberId& a, const MemberId& b, Clock::time_point now) const {
  const auto has_accused = [&](const MemberId& by, const MemberId& of) {
    if (by == self_) return accuses(of, now);
    const auto entry = accusations_.find(by);
    return entry != accusations_.end() && contains(entry->second, of);
  };
  return has_accused(a, b) || has_accused(b, a);
}

Suspicion::Accusers Suspicion::accusers(Clock::time_point now) const {
  Accusers accusers;
  const auto add = [&](const MemberId& by, const std::vector<MemberId>& of) {
    for (const MemberId& other : of) {
      if (by != other && contains(everybody_, other)) accusers[other].insert(by);
    }
  };
  add(self_, accusing(now));
  for (const auto& [by, of] : accusations_) add(by, of);
  return accusers;
}

std::set<Suspicion::Pair> Suspicion::broken_pairs(Clock::time_point now) const {
  std::set<Pair> pairs;
  for (const auto& [of, accusers] : accusers(now))
    for (const MemberId& by : accusers) pairs.emplace(std::min(of, by), std::max(of, by));
  return pairs;
}

bool Suspicion::are_most_keepers(const std::vector<MemberId>& ids) const {
  const auto count = std::count_if(keepers_.begin(), keepers_.end(),
                                   [&](const MemberId& keeper) { return contains(ids, keeper); });
  return 2 * static_cast<std::size_t>(count) > keepers_.size();
}

std::set<MemberId> Suspicion::gone(Clock::time_point now) const {
  const Accusers accusers = this->accusers(now);
  std::set<MemberId> gone;
  if (accusers.empty()) return gone;
  // On the side without a majority all accuse most keepers, and are right about those.
  if (!are_most_keepers(accusing(now))) {
    for (const auto& [by, of] : accusations_)
      if (by != self_ && are_most_keepers(of)) gone.insert(by);
  }
  // Those that are left are this member and whom it hears: one that hears nobody is left alone.
  const auto is_left = [&](const MemberId& id) { return !gone.contains(id) && !accuses(id, now); };
  const auto accused_by_all_but = [&](const std::set<MemberId>& by, const MemberId& except) {
    return std::all_of(everybody_.begin(), everybody_.end(), [&](const MemberId& id) {
      return id == except || !is_left(id) || by.contains(id);
    });
  };
  const auto remaining = [&](const std::set<MemberId>& ids) {
    return static_cast<std::size_t>(std::count_if(
        ids.begin(), ids.end(), [&](const MemberId& id) { return !gone.contains(id); }));
  };
  // With each one that is gone fewer are left, so that others may be accused by all of them.
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [of, by] : accusers) {
      if (of == self_ || gone.contains(of)) continue;
      if (remaining(by) < 2 && !accused_by_all_but(by, of)) continue;
      gone.insert(of);
      changed = true;
    }
    if (changed) continue;
    for (const MemberId& accuser : everybody_) {
      if (accuser == self_ || gone.contains(accuser)) continue;
      std::set<MemberId> unheard_by_it_alone;
      for (const auto& [of, by] : accusers) {
        if (!gone.contains(of) && by.contains(accuser) && remaining(by) == 1)
          unheard_by_it_alone.insert(of);
      }
      if (unheard_by_it_alone.empty()) continue;
      if (unheard_by_it_alone.size() < 2 && !accused_by_all_but(unheard_by_it_alone, accuser))
        continue;
      gone.insert(accuser);
      changed = true;
    }
  }
  return gone;
}

}  // namespace shoal::collective::membership
