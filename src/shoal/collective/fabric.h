#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collective/communicator.h"
#include "shoal/collective/route/link_matrix.h"
#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/collective/transport_options.h"
#include "shoal/wire/address.h"
#include "shoal/wire/arena.h"
#include "shoal/wire/key_values.h"
#include "shoal/wire/tcp_transport.h"

namespace shoal::collective {

/// Connects the ranks of a job: memory that the ranks of a host share, and TCP connections of each
/// rank to every other. Groups are built on it: ranks of one host get a HostCommunicator, ranks of
/// which no two share a host a TcpCommunicator, all others a HierarchicalCommunicator of both.
///
/// With RouteMode::kMeasured three or more ranks on hosts of their own, some of them far apart
/// (`is_far`), measure the links between them when they have connected. If these are uneven
/// (`route_over`), groups go by what was measured.
///
/// A failure is always the whole job's. Threads: one at a time, as Communicator; any thread may
/// call `abort` and `propagate`.
class Fabric {
 public:
  struct Options {
    std::string name;  ///< unique to the job on each of its hosts
    std::string key;   ///< members must show it; at most 64 bytes
    int rank = 0;
    int size = 1;
    bool shares_memory = true;  ///< false: TCP also between ranks of one host
    TransportOptions network;
    std::shared_ptr<FlightBook> flight;  ///< all groups record their operations here; null: nowhere
    Duration timeout = std::chrono::minutes(10);  ///< for operations that bring none of their own
    /// Is shared by all groups of this rank, which one thread uses. Null: a wait in one group
    /// advances no other, for ranks that use groups on threads of their own.
    std::shared_ptr<Progress> progress;
  };
  /// Makes the memory of this rank that its peers map. It is called once it is known how many ranks
  /// share the host, and may return null: the rank then shares no memory.
  using ArenaFor = std::function<std::shared_ptr<wire::Arena>(int ranks_on_host)>;

  /// Connects ranks that are all on this host, by a rendezvous at `options.name` and without a
  /// store. Throws what wire::local_rendezvous throws.
  static std::shared_ptr<Fabric> on_one_host(Options options, const ArenaFor& arena_for,
                                             Deadline deadline);
  /// Connects ranks on any hosts through `store`, under keys that nothing else uses. If ranks of
  /// one host cannot share memory a warning goes to stderr, and TCP carries everything. Throws what
  /// wire::TcpTransport throws.
  static std::shared_ptr<Fabric> on_hosts(Options options, wire::KeyValues& store,
                                          const ArenaFor& arena_for, Deadline deadline);

  const Options& options() const { return options_; }
  const std::shared_ptr<wire::Arena>& arena() const { return arena_; }
  /// Returns a number for each rank, equal for ranks that share memory.
  const std::vector<int>& hosts() const { return hosts_; }
  /// Returns what was measured between the ranks; null: nothing was.
  const std::shared_ptr<const LinkMatrix>& links() const { return links_; }
  /// Returns true when all ranks share memory, so that there are no connections.
  bool in_one_memory() const { return !transport_; }

  /// Makes a group of all ranks. Collective.
  std::unique_ptr<Communicator> group_of_all() const;
  /// Makes a group of the ranks `members`, this one among them, in that order. Only they call it.
  /// They agree through `store`, under keys that no other group uses.
  std::unique_ptr<Communicator> group(const std::vector<int>& members, wire::KeyValues& store,
                                      Deadline deadline);

  /// Throws the first cause once something has failed on any rank. A failure in shared memory is
  /// passed on to the connections, and the other way round.
  void check();
  /// Ends everything on all ranks.
  void abort(const Error& cause);
  /// Passes a failure on to the ranks of other hosts, which may not know of it. The caller has seen
  /// a group fail with `error` on this rank.
  void propagate(const Error& error);
  /// Translates an error of a HostCommunicator, which counts the ranks of its host, to ranks of the
  /// job.
  Error with_job_ranks(const Error& error) const;
  /// Tells the other ranks that this one is done and that its end is no failure.
  void leave();

 private:
  explicit Fabric(Options options) : options_(std::move(options)) {}
  std::vector<int> ranks_of_this_host() const;
  void measure(Deadline deadline);
  void share_memory(Deadline deadline);
  HostCommunicator::Options host_options() const;
  TcpCommunicator::Options tcp_options() const;
  std::unique_ptr<HostCommunicator> host_group(const std::vector<int>& members,
                                               wire::KeyValues& store, Deadline deadline) const;
  std::unique_ptr<Communicator> hierarchy(std::unique_ptr<HostCommunicator> host,
                                          std::unique_ptr<TcpCommunicator> all) const;

  Options options_;
  std::shared_ptr<wire::Arena> arena_;
  std::vector<int> hosts_;
  std::shared_ptr<HostWorld> world_;               ///< null where no two ranks share memory
  std::shared_ptr<wire::TcpTransport> transport_;  ///< null where all ranks share memory
  std::shared_ptr<const LinkMatrix> links_;
  std::optional<Clock::time_point> world_ended_;  ///< when the end of `world_` was first seen
};

}  // namespace shoal::collective
