#pragma once

#include <memory>

#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/comm/shared_buffer.h"
#include "shoal/wire/arena.h"

namespace shoal::comm {

/// Collective over `communicator`. The first rank takes the memory from its arena (threads: from
/// the C library without one) and the others reach it there. Null on every rank when the first has
/// no arena and ranks are processes.
std::shared_ptr<SharedBuffer> make_host_shared_buffer(
    std::shared_ptr<collective::HostCommunicator> communicator, std::shared_ptr<wire::Arena> arena,
    bool threads, std::size_t bytes);

}  // namespace shoal::comm
