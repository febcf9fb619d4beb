#pragma once

#include <map>
#include <set>
#include <utility>

#include "shoal/base/clock.h"
#include "shoal/collective/membership/suspicion.h"
#include "shoal/collective/membership/view.h"

namespace shoal::collective::membership {

/// Pairs of members of which one does not hear the other, while the rest hear both. Neither is
/// gone, but no step can be computed without both. So where that lasts one of the two must go, and
/// this says which one.
///
/// A pair counts as broken from when that is first seen until it is seen connected, or a step is
/// committed, which takes all members. In a new view, in which everybody counts as heard at first,
/// a pair stays as it was until its silence would have been noticed: attempts that fail soon, one
/// view after the other, must not hide it.
///
/// Nothing that must be true rests on it: a wrong choice costs a view change.
class BrokenPairs {
 public:
  explicit BrokenPairs(Duration beat, Duration suspect_after)
      : beat_(beat), noticed_after_(suspect_after + 2 * beat) {}

  /// The view begins: those that are in it no more are forgotten.
  void begin(const View& view, Clock::time_point now);
  /// Called with every tick.
  void watch(const View& view, const Suspicion& suspicion, Clock::time_point now);
  /// A step was committed, or another lineage begins.
  void forget() { since_.clear(); }

  /// Returns who must go so that no pair is left that has been broken for `patience`, beside those
  /// that are gone: of each pair the one that lacks more connections, else the later one in the
  /// view, so that the owner stays wherever it can. Never one without which nobody has the state,
  /// or too few keepers are left to decide.
  std::set<MemberId> to_remove(const View& view, const std::set<MemberId>& gone,
                               Duration patience) const;
  /// Those that have had no connection with `member` for `longer`, in a standing pair or not.
  std::vector<MemberId> apart_from(const MemberId& member, Duration longer) const;

 private:
  using Pair = Suspicion::Pair;

  std::map<MemberId, int> missing_connections(const std::set<MemberId>& without,
                                              Duration patience) const;
  static bool may_lose(const View& view, const std::set<MemberId>& lost, const MemberId& id);

  Duration beat_;
  Duration noticed_after_;  ///< so long after a view's begin silence is known
  Clock::time_point begun_{};
  Clock::time_point watched_{};
  std::map<Pair, Clock::time_point> since_;
  std::set<Pair> broken_;  ///< as it was seen last
};

}  // namespace shoal::collective::membership
