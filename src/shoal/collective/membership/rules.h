#pragma once

#include <cstddef>

namespace shoal::collective::membership {

/// What the agreement rests on. As they stand, these are the rules of the protocol; nothing but a
/// test changes one, to see that the simulator finds what goes wrong without it.
struct Rules {
  std::size_t votes_below_majority = 0;  ///< so many votes fewer than a majority are enough
  bool counts_with_new_keepers = false;  ///< the next view is decided by as many as it needs itself
  bool promise_reports_view = true;      ///< a promise says what was accepted as the next view
  bool promise_reports_step = true;      ///< and what of the last step
  bool promise_seals = true;             ///< who has promised accepts no more steps of the epoch
  bool refuses_lower_ballots = true;     ///< who has promised accepts nothing under a lower ballot
  bool adopts_accepted_view = true;      ///< a proposer takes over what may be decided
  bool waits_for_holders = true;         ///< nobody acts before most new keepers hold the view
  bool commits_need_all_reports = true;  ///< of all members
  bool chain_keeps_entries = true;       ///< of an etcd that somebody may still ask for
  bool parts_broken_pairs = true;  ///< one goes of two that have not heard each other for long

  std::size_t majority(std::size_t keepers) const {
    const std::size_t votes = keepers / 2 + 1;
    return votes > votes_below_majority ? votes - votes_below_majority : 1;
  }
};

}  // namespace shoal::collective::membership
