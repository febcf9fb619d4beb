#pragma once

#include <map>
#include <set>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/membership/view.h"

namespace shoal::collective::membership {

/// Who of a view is gone, as one member sees it, from what it hears and from what others accuse.
///
/// Everybody watches its four successors and the keepers; keepers watch everybody. Who has heard
/// nothing of somebody that it watches for `after` accuses it. *Gone* is who is accused by two, or
/// by all that are left; and who accuses two, or all that are left, of whom others hear: it is the
/// one that hears nothing. A single accusation is a broken connection: an edge, not a death.
///
/// Nothing that must be true rests on it: a wrong suspicion costs a view change.
class Suspicion {
 public:
  static constexpr std::size_t kSuccessors = 4;

  Suspicion(MemberId self, Duration after) : self_(self), after_(after) {}

  /// Begins anew: everybody has just been heard.
  void begin(const View& view, Clock::time_point now);
  void heard(const MemberId& from, Clock::time_point now);
  /// `by` accuses these, and nobody else any more.
  void accused(const MemberId& by, const std::vector<MemberId>& of);

  /// Those that this member accuses.
  std::vector<MemberId> accusing(Clock::time_point now) const;
  /// Never this member itself, which knows better.
  std::set<MemberId> gone(Clock::time_point now) const;
  /// Whether one of the two accuses the other.
  bool is_edge_broken(const MemberId& a, const MemberId& b, Clock::time_point now) const;
  bool accuses(const MemberId& of, Clock::time_point now) const;
  /// Who watches this member: who wants its beats.
  const std::vector<MemberId>& watchers() const { return watchers_; }

 private:
  using Accusers = std::map<MemberId, std::set<MemberId>>;
  Accusers accusers(Clock::time_point now) const;

  MemberId self_;
  Duration after_;
  std::vector<MemberId> everybody_;
  std::map<MemberId, Clock::time_point> heard_;  ///< of those that this member watches
  std::vector<MemberId> watchers_;
  std::map<MemberId, std::vector<MemberId>> accusations_;  ///< of others, by accuser
};

}  // namespace shoal::collective::membership
