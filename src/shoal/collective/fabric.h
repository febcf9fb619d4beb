#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collective/communicator.h"
#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/collective/transport_options.h"
#include "shoal/wire/address.h"
#include "shoal/wire/arena.h"
#include "shoal/wire/key_values.h"
#include "shoal/wire/peers.h"

namespace shoal::collective {

/// What lies between the ranks of a job once they have met: memory that those of a host share, TCP
/// connections of each to each. Groups stand on it: ranks that share a host get a HostCommunicator,
/// ranks of which no two do a TcpCommunicator, the others a HierarchicalCommunicator of both.
///
/// All failures are the whole job's. Threads: one at a time, as Communicator; `abort` and `spread`
/// any.
class Fabric {
 public:
  struct Settings {
    std::string name;  ///< unique to the job on each of its hosts
    std::string key;   ///< what members must show; at most 64 bytes
    int rank = 0;
    int size = 1;
    bool shares_memory = true;  ///< false: TCP also between ranks of one host
    TransportOptions network;
    std::shared_ptr<FlightBook> flight;  ///< all groups record their operations here; null: nowhere
    Duration timeout = std::chrono::minutes(10);  ///< of operations that bring none of their own
  };
  /// Gives this rank the memory that its peers map, once it is known how many ranks share the host;
  /// null: none.
  using ArenaFor = std::function<std::shared_ptr<wire::Arena>(int ranks_on_host)>;

  /// All ranks are on this host and meet at `settings.name`, without anybody's help. Throws what
  /// wire::meet throws.
  static std::shared_ptr<Fabric> on_one_host(Settings settings, const ArenaFor& arena_for,
                                             Deadline deadline);
  /// Ranks on any hosts meet through `store`, under keys that nobody else uses. Where passing
  /// memory around fails they are told on stderr, and TCP carries all. Throws what wire::Peers
  /// throws.
  static std::shared_ptr<Fabric> on_hosts(Settings settings, wire::KeyValues& store,
                                          const ArenaFor& arena_for, Deadline deadline);

  const Settings& settings() const { return settings_; }
  const std::shared_ptr<wire::Arena>& arena() const { return arena_; }
  /// By rank a number, the same for those that share memory.
  const std::vector<int>& hosts() const { return hosts_; }
  /// All ranks share memory: there are no connections.
  bool in_one_memory() const { return !peers_; }

  /// All ranks. Collective.
  std::unique_ptr<Communicator> group_of_all() const;
  /// The ranks `members`, of which this is one, in that order; nobody else takes part. They find
  /// each other through `store`, under keys that no other group uses. Collective.
  std::unique_ptr<Communicator> group(const std::vector<int>& members, wire::KeyValues& store,
                                      Deadline deadline);

  /// Throws the first cause once something has failed on any rank, and tells it to those who hear
  /// only of memory, or only of connections.
  void check();
  /// Ends everything on all ranks.
  void abort(const Error& cause);
  /// One of the groups has failed with `error` on this rank: ranks of other hosts may not have
  /// heard of it.
  void spread(const Error& error);
  /// `error` of a HostCommunicator, which counts the ranks of its host, for people who count those
  /// of the job.
  Error as_seen_by_all(const Error& error) const;
  /// This rank is done and about to go: its end is no failure.
  void leave();

 private:
  explicit Fabric(Settings settings) : settings_(std::move(settings)) {}
  std::vector<int> mates() const;
  void meet_mates(Deadline deadline);
  HostCommunicator::Settings host_settings() const;
  TcpCommunicator::Settings tcp_settings() const;
  std::unique_ptr<HostCommunicator> host_group(const std::vector<int>& members,
                                               wire::KeyValues& store, Deadline deadline) const;
  std::unique_ptr<Communicator> hierarchy(std::unique_ptr<HostCommunicator> host,
                                          std::unique_ptr<TcpCommunicator> all) const;

  Settings settings_;
  std::shared_ptr<wire::Arena> arena_;
  std::vector<int> hosts_;
  std::shared_ptr<HostWorld> world_;  ///< null where nobody shares memory with anybody
  std::shared_ptr<wire::Peers> peers_;
  std::optional<Clock::time_point> world_ended_;  ///< when that was first seen
};

}  // namespace shoal::collective
