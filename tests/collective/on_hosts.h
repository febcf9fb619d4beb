#pragma once

#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/collective/hierarchy/hierarchical_communicator.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/network_ranks.h"

namespace shoal::collective {

/// Runs `body` on a thread for each of `hosts`, which names their hosts: those of one share a
/// control segment, all are connected over loopback
/// before the first body begins. Returns what each threw.
inline std::vector<std::optional<Error>> on_hosts(
    const std::vector<int>& hosts,
    const std::function<void(HierarchicalCommunicator&, const wire::TcpTransport&)>& body,
    bool in_rank_order = false) {
  const int ranks = static_cast<int>(hosts.size());
  std::map<int, std::shared_ptr<wire::SharedSegment>> controls;
  for (const int host : hosts) {
    if (!controls[host]) {
      controls[host] = std::make_shared<wire::SharedSegment>(
          wire::SharedSegment::create("control", HostWorld::control_bytes()));
    }
  }
  std::latch all_built(ranks);
  return on_network(ranks, [&](const wire::Endpoint& store, int rank) {
    const Duration minute = std::chrono::seconds(60);
    wire::StoreClient client(store, "key", soon());
    std::shared_ptr<wire::TcpTransport> peers;
    HierarchicalCommunicator c = built_by_all(all_built, [&] {
      peers = std::make_shared<wire::TcpTransport>(wire::TcpTransport::Options{.key = "key"},
                                                   client, rank, ranks, soon());
      const HostLayout layout(hosts, rank);
      auto world =
          std::make_shared<HostWorld>(layout.local, layout.local_size(), controls.at(hosts[rank]));
      auto host =
          std::make_unique<HostCommunicator>(world, HostCommunicator::Options{.timeout = minute});
      auto all = std::make_unique<TcpCommunicator>(
          peers, TcpCommunicator::Options{.hosts = hosts, .in_rank_order = in_rank_order});
      return HierarchicalCommunicator(
          std::move(host), std::move(all),
          {.timeout = minute, .arena = nullptr, .world_ranks = {}, .in_rank_order = in_rank_order});
    });
    body(c, *peers);
    c.run({.kind = Kind::kBarrier}, soon());
  });
}

inline std::vector<std::optional<Error>> on_hosts(
    const std::vector<int>& hosts, const std::function<void(HierarchicalCommunicator&)>& body) {
  return on_hosts(hosts, [&](HierarchicalCommunicator& c, const wire::TcpTransport&) { body(c); });
}

}  // namespace shoal::collective
