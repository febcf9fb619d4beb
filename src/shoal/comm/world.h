#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shoal/collective/flight/flight_book.h"
#include "shoal/collective/transport_options.h"
#include "shoal/comm/group.h"

namespace shoal::comm {

/// The transport that carries the bytes between ranks.
enum class Transport {
  kAutomatic,     ///< shared memory among the ranks of a host, TCP between hosts
  kSharedMemory,  ///< all ranks are on this host
  kTcp,           ///< also between ranks of one host: no memory is shared
  kMpi,           ///< MPI, whose launcher has started the ranks: no memory is shared
};

/// Options of a rank that joins a job.
struct WorldOptions {
  std::string name;  ///< unique to the job on this host
  std::string key;   ///< secret by which ranks recognise each other; at most 64 bytes
  int rank = 0;
  int size = 1;
  /// Installs memory that peers map as LibTorch's CPU allocator. Results are the same bits without
  /// it, only slower.
  bool arena = true;
  /// Limits the arena of this process: of one rank with `connect`, of all ranks together with
  /// `run_on_threads`. 0: the host's memory divided by the job's processes on it.
  std::size_t memory_limit_bytes = 0;
  Transport transport = Transport::kAutomatic;
  /// The place where ranks of several hosts meet, in the syntax of wire::Rendezvous. Empty: all
  /// ranks are on this host.
  std::string rendezvous;
  collective::TransportOptions network;  ///< read with a rendezvous, and with Transport::kTcp
  /// All groups record their operations here; null: nowhere.
  std::shared_ptr<collective::FlightBook> flight;
  Duration meeting_timeout = std::chrono::minutes(2);
  Duration timeout = std::chrono::minutes(10);  ///< for collectives that bring none of their own
};

/// Connects ranks that are processes: blocks until all have met. Installs the arena first, so call
/// it before anything large is allocated. A world of one waits for nobody: it gets the arena and a
/// group of one. Throws what wire::local_rendezvous, wire::Rendezvous and wire::TcpTransport throw,
/// or connect_over_mpi.
Group connect(const WorldOptions& options);

/// Runs ranks as threads of this process: calls `body(group)` on `options.size` threads that share
/// memory, with the same bits as processes. Reads `size`, `arena`, `memory_limit_bytes`, `flight`
/// and `timeout`; ignores all other options. The ranks always use shared memory. When a body
/// throws, the others are stopped; rethrows the first cause.
void run_on_threads(const WorldOptions& options, const std::function<void(const Group&)>& body);

}  // namespace shoal::comm
