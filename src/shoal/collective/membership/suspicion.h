#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/membership/view.h"

namespace shoal::collective::membership {

/// Who of a view is gone, as one member sees it, from what it hears and from what others accuse.
///
/// Everybody watches its kSuccessors successors and the keepers; keepers watch everybody. Who has
/// heard nothing of somebody that it watches for `after` accuses it; for `absent_after`, where its
/// host says that it is not there. A firewall or a translator of addresses may say so too: whoever
/// lives is heard meanwhile, because it calls itself. *Gone* is who is accused by
/// two, or by all that are left, which are this member and whom it hears; and who accuses two, or
/// all that are left, of whom others hear: it is the one that hears nothing. A single accusation is
/// a broken connection: an edge, not a death. BrokenPairs says what follows where it lasts.
///
/// Whoever hears a majority of the keepers holds everybody who accuses a majority of them for gone,
/// and counts none of its accusations: several that hear nothing must not remove those that hear
/// each other. Such a member ends soon by itself, because it knows no majority.
///
/// Nothing that must be true rests on it: a wrong suspicion costs a view change.
class Suspicion {
 public:
  /// Up to so many and one more members all watch all, so that each of their connections is
  /// watched: the collectives of a view need all of them too.
  static constexpr std::size_t kSuccessors = 63;
  /// The lower id first.
  using Pair = std::pair<MemberId, MemberId>;

  Suspicion(MemberId self, Duration after, Duration absent_after)
      : self_(self), after_(after), absent_after_(absent_after) {}

  /// Begins anew: everybody has just been heard.
  void begin(const View& view, Clock::time_point now);
  void heard(const MemberId& from, Clock::time_point now);
  /// Nobody listens at the address of this member, and it is not connected.
  void absent(const MemberId& who);
  /// `by` accuses these, and nobody else any more.
  void accused(const MemberId& by, const std::vector<MemberId>& of);

  /// Those that this member accuses.
  std::vector<MemberId> accusing(Clock::time_point now) const;
  /// Never this member itself, which knows better.
  std::set<MemberId> gone(Clock::time_point now) const;
  /// Whether one of the two accuses the other.
  bool is_edge_broken(const MemberId& a, const MemberId& b, Clock::time_point now) const;
  bool accuses(const MemberId& of, Clock::time_point now) const;
  /// All such pairs.
  std::set<Pair> broken_pairs(Clock::time_point now) const;
  /// Who watches this member: who wants its beats.
  const std::vector<MemberId>& watchers() const { return watchers_; }

 private:
  using Accusers = std::map<MemberId, std::set<MemberId>>;
  /// Somebody that this member watches.
  struct Watched {
    Clock::time_point heard;
    bool absent = false;  ///< since it was heard
  };
  bool is_silent(const Watched& watched, Clock::time_point now) const;
  Accusers accusers(Clock::time_point now) const;
  bool are_most_keepers(const std::vector<MemberId>& ids) const;

  MemberId self_;
  Duration after_;
  Duration absent_after_;
  std::vector<MemberId> everybody_;
  std::vector<MemberId> keepers_;
  std::map<MemberId, Watched> watched_;
  std::vector<MemberId> watchers_;
  std::map<MemberId, std::vector<MemberId>> accusations_;  ///< of others, by accuser
};

}  // namespace shoal::collective::membership
