#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/wire/arena.h"

namespace shoal::collective {

/// Runs `body(communicator, rank)` on `ranks` threads that share memory. Rethrows the first rank's
/// exception, if any.
void on_threads(int ranks, const std::function<void(HostCommunicator&, int)>& body);

/// Runs `body` on `ranks` child processes, each with an arena. Returns their exit statuses: what
/// `body` returned, 99 for an exception (printed), or 128 + n for a signal. `body` runs in the
/// child: gtest assertions do not reach the parent, so report by the return value.
std::vector<int> on_processes(
    int ranks, const std::function<int(HostCommunicator&, wire::Arena&, int)>& body,
    const std::function<void(const std::vector<int>& pids)>& meanwhile = {},
    HostCommunicator::Options options = {.timeout = std::chrono::seconds(60)});

}  // namespace shoal::collective
