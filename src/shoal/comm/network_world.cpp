#include "shoal/comm/network_world.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "shoal/collective/fabric.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/departure.h"
#include "shoal/wire/address.h"
#include "shoal/wire/rendezvous.h"

namespace shoal::comm {

Group connect_over_network(const WorldOptions& options) {
  const Deadline deadline = Deadline::in(options.meeting_timeout);
  const bool one_host = options.rendezvous.empty();
  const std::string place =
      one_host ? "file:" + wire::rendezvous_directory() + "/" + options.name + ".store"
               : options.rendezvous;
  // A file tells nothing about the network, and the address that rank 0 writes into it must be one
  // that other hosts reach.
  if (!one_host && place.starts_with("file:") && options.network.interface.empty()) {
    throw Error(
        ErrorKind::kConfig, "connect",
        fmt::format("ranks that meet at {} do not know which address leads to rank 0", place))
        .hint("name the network interface (parallelism.interface), or meet at host:port");
  }
  const std::string address =
      options.network.interface.empty() ? "" : wire::interface_address(options.network.interface);
  // The group keeps the store alive: other ranks may still look each other up in it.
  const auto meeting = std::make_shared<wire::Rendezvous>(place, options.key, options.rank,
                                                          address.empty() ? "127.0.0.1" : address,
                                                          deadline, options.network.tls);

  // With TCP alone no peer maps the arena, but it still counts memory and enforces the rank's
  // limit.
  const auto arena_for = [&](int ranks_on_host) {
    return options.arena ? ensure_arena(options.memory_limit_bytes, ranks_on_host) : nullptr;
  };
  const auto fabric =
      collective::Fabric::on_hosts({.name = options.name,
                                    .key = options.key,
                                    .rank = options.rank,
                                    .size = options.size,
                                    .shares_memory = options.transport != Transport::kTcp,
                                    .network = options.network,
                                    .flight = options.flight,
                                    .timeout = options.timeout,
                                    .progress = std::make_shared<collective::Progress>()},
                                   meeting->store(), arena_for, deadline);
  std::shared_ptr<collective::Communicator> all = fabric->group_of_all();
  if (fabric->in_one_memory()) {
    all->run({.kind = collective::Kind::kBarrier},
             deadline);  // all have read what they need from the store
  }
  meeting->all_ranks_connected();
  return Group(std::move(all), std::make_shared<Departure>(fabric, meeting));
}

}  // namespace shoal::comm
