#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/communicator.h"
#include "shoal/collective/elastic/steady_state.h"
#include "shoal/collective/membership/letter.h"

namespace shoal::collective::elastic {

/// A joiner's stream begins anew where the state is committed over meanwhile, at most twice.
constexpr int kMostStreamBegins = 3;

/// How a member sends its state.
struct StreamPace {
  Deadline deadline = Deadline::never();
  std::uint64_t bytes_per_second = 0;  ///< at most; 0: as many as the connection takes
  /// Is called between two parts. It may throw an Error to give up.
  std::function<void()> may_go_on = [] {};
};

/// Sends the state of a member to a joiner, which calls `receive_state`: rank 0 of `pair` to
/// rank 1. Nothing is sent while the member attempts a step. Where one is committed, the rest of
/// the state is of no use, and the stream begins anew with the one that followed, kMostStreamBegins
/// times at most. Throws what collectives and `write` throw, Error(timeout) at the deadline.
void send_state(Communicator& pair, SteadyState& state, const StreamPace& pace);

struct ReceivedState {
  membership::Place place;  ///< that its provider's part in the agreement has come to
  std::vector<std::byte> bytes;
};
/// Receives what `send_state` sends; nothing where the state was committed over again and again.
/// Memory grows with what arrives. Throws what collectives throw, Error(timeout) at the deadline,
/// Error(data) for what `send_state` does not send.
std::optional<ReceivedState> receive_state(Communicator& pair, Deadline deadline,
                                           const std::function<void()>& may_go_on);

}  // namespace shoal::collective::elastic
