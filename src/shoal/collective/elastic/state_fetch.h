#pragma once

#include <functional>
#include <optional>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/elastic/letter_carrier.h"
#include "shoal/collective/elastic/state_exchange.h"
#include "shoal/collective/elastic/state_stream.h"
#include "shoal/collective/elastic/view_world.h"

namespace shoal::collective::elastic {

struct FetchOptions {
  ViewWorld::Options world;
  Duration answer_time = std::chrono::seconds(5);  ///< a member that is silent for so long is left
  Duration meeting_timeout = std::chrono::seconds(60);  ///< to connect to a member
  /// Is told of each member that has given no right state.
  std::function<void(const Error&)> on_fault = [](const Error&) {};
  /// Is called while this waits. It may throw to give up.
  std::function<void()> may_go_on = [] {};
};

struct FetchedState {
  MemberId provider;
  ReceivedState state;
};

/// Brings the state of the last commit to a joiner that is in no view yet, from one of the members
/// that the carrier has found, while these go on. Its bytes have the digest that its provider's
/// part in the agreement names; whether that is the state of the view that the joiner comes into
/// shows there. A member that gives another state is named to `on_fault`, and so is one that is
/// lost; then the next one is asked. Returns nothing where the state is given in the view only: no
/// member has given it, it was committed over again and again, or the group does not do this.
std::optional<FetchedState> fetch_state(LetterCarrier& carrier, const StateAccess& access,
                                        const FetchOptions& options, Deadline deadline);

}  // namespace shoal::collective::elastic
