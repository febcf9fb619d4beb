#pragma once

#include <memory>
#include <optional>

#include "shoal/base/clock.h"
#include "shoal/collective/route/link_matrix.h"
#include "shoal/collective/route/route_mode.h"
#include "shoal/wire/transport.h"

namespace shoal::collective {

/// Links of more ranks than this are not measured: it takes a time that grows with their number.
constexpr int kMostMeasuredRanks = 32;

/// The ranks to which a rank sends in a round, and from which it receives; -1: none.
struct ProbePeers {
  int to = -1;
  int from = -1;
};
/// Returns those of `rank` of `ranks`. In rounds 0 to rounds_of_probes(ranks) - 1 each way from one
/// rank to another is used once, and never with its way back.
ProbePeers peers_in_round(int ranks, int rank, int round);
int rounds_of_probes(int ranks);

/// Returns true where `peer` is so far away that it has several connections, or would have them if
/// nobody had said how many (wire::rails_for).
bool is_far(const wire::Transport& transport, int peer);

/// Measures the ways between all ranks, one from and one to each in a round, and returns the
/// matrix, the same on all ranks. All call it, and use the transport for nothing else meanwhile. A
/// rank sends for 0.4 seconds or eight round trips, what is longer, but all rounds together for 2
/// seconds at most; then each round takes what 64 KiB or more take on its slowest link, and a round
/// trip or two. Over long links a direction may not have come to its full rate by then. Throws as
/// LinkProbe and TcpCommunicator do.
LinkMatrix measure_links(const std::shared_ptr<wire::Transport>& transport, Deadline deadline);

/// Returns what `measure_links` finds where at least two of at most kMostMeasuredRanks ranks are
/// far apart and `mode` allows it, else nothing; on all ranks the same. Where no two are far apart,
/// a rank sends and receives a few short messages. Throws Error(usage) on all ranks where some have
/// another mode.
std::optional<LinkMatrix> measure_where_far(const std::shared_ptr<wire::Transport>& transport,
                                            RouteMode mode, Deadline deadline);

}  // namespace shoal::collective
