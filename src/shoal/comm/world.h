#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shoal/collective/algorithm/cost_model.h"
#include "shoal/collective/flight/flight_book.h"
#include "shoal/comm/group.h"
#include "shoal/wire/address.h"

namespace shoal::comm {

/// What carries the bytes between ranks.
enum class Transport {
  kAutomatic,     ///< shared memory among the ranks of a host, TCP between hosts
  kSharedMemory,  ///< all ranks are on this host
  kTcp,           ///< also between ranks of one host: no memory is shared
  kMpi,           ///< MPI, whose launcher has started the ranks: no memory is shared
};

/// How the ranks of a job come together.
struct WorldOptions {
  std::string name;  ///< unique to the job on this host
  std::string key;   ///< what members must show; at most 64 bytes
  int rank = 0;
  int size = 1;
  bool arena = true;  ///< memory that peers map, installed as LibTorch's CPU allocator; the same
                      ///< bits without, only slower
  std::size_t memory_limit_bytes = 0;  ///< of this rank; 0: its share of what the host has
  Transport transport = Transport::kAutomatic;
  std::string rendezvous;  ///< where ranks of several hosts meet, as wire::Rendezvous reads it;
                           ///< empty: all are on this host
  std::string interface;   ///< TCP: name or prefix of the address to listen on; empty: the one that
                           ///< leads to rank 0
  std::string host;        ///< with a rendezvous: ranks that name different hosts share no memory,
                           ///< whatever is true (so that tests play several)
  std::string
      algorithms;  ///< TCP: overrides of the choice of algorithms, as collective::Choice reads them
  /// TCP: what algorithms are chosen by. Rank 0's counts, for all: whatever the others have.
  collective::CostModel link_costs;
  wire::PortRange
      ports;  ///< TCP: of which this rank listens on the first that is free; 0: the system chooses
  bool in_rank_order = false;  ///< reductions fold in the order of ranks, whatever carries them:
                               ///< the same bits on one host, on several, over TCP
  std::shared_ptr<collective::FlightBook>
      flight;  ///< where all groups leave what they remember of their operations; null: nowhere
  Duration meeting_timeout = std::chrono::minutes(2);
  Duration timeout = std::chrono::minutes(10);  ///< of collectives that bring none of their own
};

/// Ranks as processes: blocks until all have met. Installs the arena first, so call it before
/// anything large is allocated. A world of one meets nobody; it gets the arena and a group of one.
/// Throws what wire::local_rendezvous, wire::Rendezvous and wire::TcpTransport throw, or
/// connect_over_mpi.
Group connect(const WorldOptions& options);

/// Ranks as threads of this process: runs `body(group)` on `options.size` threads that share
/// memory, with the same bits as processes. `options.rank`, `name` and `key` are not used. When a
/// body throws, the others are stopped; rethrows the first cause.
void run_on_threads(const WorldOptions& options, const std::function<void(const Group&)>& body);

}  // namespace shoal::comm
