#include "shoal/comm/network_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "shoal/collective/tcp_communicator.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/hierarchical_engine.h"
#include "shoal/comm/host_engine.h"
#include "shoal/wire/address.h"
#include "shoal/wire/host_groups.h"
#include "shoal/wire/peers.h"
#include "shoal/wire/rendezvous.h"

namespace shoal::comm {
namespace {

using collective::CostModel;
using collective::HierarchicalCommunicator;
using collective::HostCommunicator;
using collective::HostWorld;
using collective::TcpCommunicator;

/// The ranks of the world that lie on the host of this one, in their order.
std::vector<int> mates(const std::vector<int>& hosts, int rank) {
  std::vector<int> result;
  for (std::size_t r = 0; r < hosts.size(); ++r)
    if (hosts[r] == hosts[static_cast<std::size_t>(rank)]) result.push_back(static_cast<int>(r));
  return result;
}

bool nobody_shares(const std::vector<int>& hosts) {
  auto sorted = hosts;
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

/// The memory that this rank shares with its mates; null where passing it around failed.
std::shared_ptr<HostWorld> meet_mates(const WorldOptions& options, const std::vector<int>& mates, const wire::Arena* arena, Deadline deadline) {
  const int rank = static_cast<int>(std::find(mates.begin(), mates.end(), options.rank) - mates.begin());
  const wire::Meeting meeting{.name = fmt::format("{}.{}", options.name, mates.front()),
                              .key = options.key,
                              .rank = rank,
                              .size = static_cast<int>(mates.size()),
                              .control_bytes = HostWorld::control_bytes(),
                              .arena = arena ? &arena->segment() : nullptr};
  try {
    return std::make_shared<HostWorld>(rank, wire::meet(meeting, deadline), arena ? &arena->segment() : nullptr);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kUsage) throw;
    fmt::print(stderr, "shoal: rank {} shares no memory with the other ranks of its host, TCP carries all: {}\n", options.rank, error.what());
    return nullptr;
  }
}

/// Rank 0's costs: by others another rank would choose other algorithms.
CostModel agree_on_costs(wire::StoreClient& store, int rank, const CostModel& own, Deadline deadline) {
  constexpr const char* kKey = "link_costs";
  CostModel costs = own;
  double* const numbers[] = {&costs.inside.alpha, &costs.inside.beta, &costs.between.alpha, &costs.between.beta, &costs.overhead, &costs.fold};
  if (rank == 0) {
    std::string text;
    for (const double* number : numbers) text += fmt::format("{:a} ", *number);
    store.set(kKey, text, deadline);
    return costs;
  }
  std::istringstream text(store.wait(kKey, deadline));
  for (double* number : numbers) {
    std::string word;
    text >> word;
    *number = std::strtod(word.c_str(), nullptr);
  }
  return costs;
}

std::shared_ptr<HostWorld> alone() {
  return std::make_shared<HostWorld>(0, 1,
                                     std::make_shared<wire::SharedSegment>(wire::SharedSegment::create("shoal-control", HostWorld::control_bytes())));
}

}  // namespace

Group connect_over_network(const WorldOptions& options) {
  const Deadline deadline = Deadline::in(options.meeting_timeout);
  const bool one_host = options.rendezvous.empty();
  const std::string place = one_host ? "file:" + wire::meeting_directory() + "/" + options.name + ".store" : options.rendezvous;
  if (!one_host && place.starts_with("file:") && options.interface.empty())
    throw Error(ErrorKind::kConfig, "connect", fmt::format("ranks that meet at {} do not know which address leads to rank 0", place))
        .hint("name the network interface (parallelism.interface), or meet at host:port");
  const std::string address = options.interface.empty() ? "" : wire::interface_address(options.interface);
  // The store serves until the last group of this process is gone: others may still be on their way to each other.
  const auto meeting = std::make_shared<wire::Rendezvous>(place, options.key, options.rank, address.empty() ? "127.0.0.1" : address, deadline);

  // Where TCP carries everything no peer maps the arena; it counts memory and holds a rank to its limit all the same.
  std::shared_ptr<wire::Arena> arena;
  std::shared_ptr<HostWorld> world;
  const CostModel costs = agree_on_costs(meeting->store(), options.rank, options.link_costs, deadline);
  auto hosts = wire::propose_hosts(meeting->store(), options.rank, options.size, options.host, deadline);
  if (options.transport == Transport::kTcp) {
    if (options.arena) arena = ensure_arena(options.memory_limit_bytes, one_host ? options.size : 1);
  } else {
    const auto here = mates(hosts, options.rank);
    if (options.arena) arena = ensure_arena(options.memory_limit_bytes, static_cast<int>(here.size()));
    if (here.size() > 1) world = meet_mates(options, here, arena.get(), Deadline::in(deadline.left() / 2));
    hosts = wire::agree_on_hosts(meeting->store(), options.rank, hosts, here.size() == 1 || world, deadline);
    if (mates(hosts, options.rank).size() == 1) world = nullptr;
  }
  const HostCommunicator::Settings host_settings{
      .timeout = options.timeout, .flight = options.flight, .world_ranks = world ? mates(hosts, options.rank) : std::vector{options.rank}};
  if (world && world->size() == options.size) {
    auto communicator = std::make_shared<HostCommunicator>(world, host_settings);
    communicator->run({.kind = collective::Kind::kBarrier}, deadline);  // all have read what they need from the store
    meeting->all_have_come();
    return Group(std::make_shared<HostEngine>(std::move(communicator), arena, false));
  }

  auto peers = std::make_shared<wire::Peers>(wire::Peers::Settings{.key = options.key, .host = address, .ports = options.ports}, meeting->store(),
                                             options.rank, options.size, deadline);
  meeting->all_have_come();
  auto tcp = std::make_unique<TcpCommunicator>(std::move(peers), TcpCommunicator::Settings{.timeout = options.timeout,
                                                                                           .hosts = hosts,
                                                                                           .model = costs,
                                                                                           .algorithms = options.algorithms,
                                                                                           .flight = options.flight,
                                                                                           .in_rank_order = options.in_rank_order});
  if (options.transport == Transport::kTcp || nobody_shares(hosts)) return Group(std::make_shared<CommunicatorEngine>(std::move(tcp), meeting));
  auto host = std::make_unique<HostCommunicator>(world ? world : alone(), host_settings);
  auto communicator = std::make_shared<HierarchicalCommunicator>(
      std::move(host), std::move(tcp),
      HierarchicalCommunicator::Settings{
          .timeout = options.timeout, .arena = world ? arena : nullptr, .world_ranks = {}, .in_rank_order = options.in_rank_order});
  return Group(std::make_shared<HierarchicalEngine>(std::move(communicator), arena, meeting));
}

}  // namespace shoal::comm
