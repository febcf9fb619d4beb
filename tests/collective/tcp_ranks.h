#pragma once

#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/network_ranks.h"

// Ranks as threads that are connected over loopback.

namespace shoal::collective {

/// Connects one rank to the world of a store.
inline std::shared_ptr<wire::TcpTransport> join(const wire::Endpoint& store, int rank, int size,
                                                Duration silence = std::chrono::seconds(60),
                                                Deadline deadline = soon()) {
  wire::StoreClient client(store, "key", soon());
  return std::make_shared<wire::TcpTransport>(
      wire::TcpTransport::Options{
          .key = "key", .heartbeat = std::chrono::milliseconds(100), .silence = silence},
      client, rank, size, deadline);
}

/// Runs `body` on `ranks` threads that are connected over loopback, once all are connected: a rank
/// whose body failed at once would otherwise end the joining of a slower one. Returns what each
/// threw, empty where it threw nothing.
inline std::vector<std::optional<Error>> on_tcp(int ranks,
                                                const std::function<void(TcpCommunicator&)>& body,
                                                const TcpCommunicator::Options& options = {}) {
  std::latch all(ranks);
  return on_network(ranks, [&](const wire::Endpoint& store, int rank) {
    TcpCommunicator c =
        built_by_all(all, [&] { return TcpCommunicator(join(store, rank, ranks), options); });
    body(c);
    c.run({.kind = Kind::kBarrier}, soon());
  });
}

}  // namespace shoal::collective
