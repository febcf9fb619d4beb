#include "shoal/collective/fabric.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/duration.h"
#include "shoal/collective/hierarchy/hierarchical_communicator.h"
#include "shoal/collective/route/measure.h"
#include "shoal/collective/route/route.h"
#include "shoal/wire/host_groups.h"
#include "shoal/wire/local_rendezvous.h"

namespace shoal::collective {
namespace {

/// A failure that shows on this host may be a consequence of one on another: its cause is awaited
/// for so long.
constexpr Duration kFirstCauseGrace = std::chrono::milliseconds(200);

bool nobody_shares(std::vector<int> hosts) {
  std::sort(hosts.begin(), hosts.end());
  return std::adjacent_find(hosts.begin(), hosts.end()) == hosts.end();
}

std::size_t index_of(const std::vector<int>& ranks, int rank) {
  return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

/// Returns rank 0's costs. All ranks must choose the same algorithms, so they must use one model;
/// hexadecimal floats keep every bit.
CostModel agree_on_costs(wire::KeyValues& store, int rank, const CostModel& own,
                         Deadline deadline) {
  constexpr const char* kKey = "link_costs";
  CostModel costs = own;
  double* const numbers[] = {&costs.inside.alpha, &costs.inside.beta, &costs.between.alpha,
                             &costs.between.beta, &costs.overhead,    &costs.fold};
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

std::shared_ptr<HostWorld> world_of_one() {
  return std::make_shared<HostWorld>(
      0, 1,
      std::make_shared<wire::SharedSegment>(
          wire::SharedSegment::create("shoal-control", HostWorld::control_bytes())));
}

/// A number that no other group has: those that split off have numbers made of their parent's, and
/// the world's is 1.
std::uint64_t new_group_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32 | random()) | 2;
}

}  // namespace

std::shared_ptr<Fabric> Fabric::on_one_host(Options options, const ArenaFor& arena_for,
                                            Deadline deadline) {
  const std::shared_ptr<Fabric> fabric(new Fabric(std::move(options)));
  fabric->hosts_.assign(static_cast<std::size_t>(fabric->options_.size), 0);
  fabric->arena_ = arena_for(fabric->options_.size);
  fabric->share_memory(deadline);
  return fabric;
}

std::shared_ptr<Fabric> Fabric::on_hosts(Options options, wire::KeyValues& store,
                                         const ArenaFor& arena_for, Deadline deadline) {
  const std::shared_ptr<Fabric> fabric(new Fabric(std::move(options)));
  Options& s = fabric->options_;
  auto& hosts = fabric->hosts_;
  auto& world = fabric->world_;
  const std::string address =
      s.network.interface.empty() ? "" : wire::interface_address(s.network.interface);
  // All ranks take the following steps in this order. In each they exchange values through the
  // store, so a rank that skipped one would leave the others waiting.
  s.network.link_costs = agree_on_costs(store, s.rank, s.network.link_costs, deadline);
  hosts = wire::propose_hosts(store, s.rank, s.size, s.network.host, deadline);
  const int here = static_cast<int>(fabric->ranks_of_this_host().size());
  fabric->arena_ = arena_for(here);
  if (s.shares_memory) {
    if (here > 1) {
      try {
        // The other half of the time is for TCP, should this fail.
        fabric->share_memory(Deadline::in(deadline.left() / 2));
      } catch (const Error& error) {
        // A usage error says that two jobs have one name, which TCP would not mend.
        if (error.kind() == ErrorKind::kUsage) throw;
        fmt::print(stderr,
                   "shoal: rank {} shares no memory with the other ranks of its host, TCP carries "
                   "all: {}\n",
                   s.rank, error.what());
      }
    }
    hosts = wire::agree_on_hosts(store, s.rank, hosts, here == 1 || world, deadline);
    // A rank whose peers could not share memory gives up its own: all ends of a connection must use
    // the same transport.
    if (fabric->ranks_of_this_host().size() == 1) world = nullptr;
    // In a hierarchy a rank that is alone on its host is a host of one.
    if (!world && (s.size == 1 || !nobody_shares(hosts))) world = world_of_one();
    if (world && world->size() == s.size) return fabric;
  } else if (s.size == 1) {
    world = world_of_one();
    return fabric;
  }
  if (s.network.tls == wire::TlsMode::kOff && s.rank == 0) {
    fmt::print(stderr,
               "shoal: tls is off: whoever is on the way between ranks can read and change what "
               "they send each other over TCP\n");
  }
  fabric->transport_ = std::make_shared<wire::TcpTransport>(
      wire::TcpTransport::Options{.key = s.key,
                                  .host = address,
                                  .ports = s.network.ports,
                                  .advertise = s.network.advertise,
                                  .silence = s.network.silence,
                                  .rails = s.network.rails,
                                  .tls = s.network.tls},
      store, s.rank, s.size, deadline);
  // All ranks know the hosts alike, so all of them measure or none does. The ranks of a host would
  // measure what they leave each other of its link.
  if (s.size >= 3 && nobody_shares(hosts) && !s.network.in_rank_order) fabric->measure(deadline);
  return fabric;
}

void Fabric::measure(Deadline deadline) {
  const auto begin = Clock::now();
  auto links = measure_where_far(transport_, options_.network.routes, deadline);
  if (!links) return;
  links_ = std::make_shared<const LinkMatrix>(*std::move(links));
  if (options_.rank != 0) return;
  const auto route = route_over(*links_);
  fmt::print(stderr, "shoal: the links of {} ranks were measured in {:.1f} s: {}\n", options_.size,
             to_seconds(Clock::now() - begin),
             route ? text_of(*route) : "they are even, so that a ring goes in the order of ranks");
}

std::vector<int> Fabric::ranks_of_this_host() const {
  std::vector<int> result;
  for (std::size_t r = 0; r < hosts_.size(); ++r) {
    if (hosts_[r] == hosts_[static_cast<std::size_t>(options_.rank)])
      result.push_back(static_cast<int>(r));
  }
  return result;
}

void Fabric::share_memory(Deadline deadline) {
  const auto here = ranks_of_this_host();
  const int rank = static_cast<int>(index_of(here, options_.rank));
  const int size = static_cast<int>(here.size());
  const wire::SharedSegment* memory = arena_ ? &arena_->segment() : nullptr;
  // Several hosts may be played on one machine, so the name tells their ranks apart.
  const wire::LocalRendezvousOptions options{
      .name =
          size == options_.size ? options_.name : fmt::format("{}.{}", options_.name, here.front()),
      .key = options_.key,
      .rank = rank,
      .size = size,
      .control_bytes = HostWorld::control_bytes(),
      .arena = memory};
  world_ = std::make_shared<HostWorld>(rank, wire::local_rendezvous(options, deadline), memory);
}

HostCommunicator::Options Fabric::host_options() const {
  return {.timeout = options_.timeout,
          .flight = options_.flight,
          .world_ranks = in_one_memory() ? std::vector<int>() : ranks_of_this_host(),
          .arena = arena_,
          .progress = options_.progress};
}

TcpCommunicator::Options Fabric::tcp_options() const {
  return {.timeout = options_.timeout,
          .hosts = hosts_,
          .model = options_.network.link_costs,
          .algorithms = options_.network.algorithms,
          .links = links_,
          .flight = options_.flight,
          .in_rank_order = options_.network.in_rank_order,
          .progress = options_.progress};
}

std::unique_ptr<Communicator> Fabric::hierarchy(std::unique_ptr<HostCommunicator> host,
                                                std::unique_ptr<TcpCommunicator> all) const {
  return std::make_unique<HierarchicalCommunicator>(
      std::move(host), std::move(all),
      HierarchicalCommunicator::Options{.timeout = options_.timeout,
                                        .arena = world_->size() > 1 ? arena_ : nullptr,
                                        .world_ranks = ranks_of_this_host(),
                                        .in_rank_order = options_.network.in_rank_order,
                                        .progress = options_.progress});
}

std::unique_ptr<Communicator> Fabric::group_of_all() const {
  auto host = world_ ? std::make_unique<HostCommunicator>(world_, host_options()) : nullptr;
  if (!transport_) return host;
  auto tcp = std::make_unique<TcpCommunicator>(transport_, tcp_options());
  if (!host) return tcp;
  return hierarchy(std::move(host), std::move(tcp));
}

std::unique_ptr<Communicator> Fabric::group(const std::vector<int>& members, wire::KeyValues& store,
                                            Deadline deadline) {
  const std::size_t own = index_of(members, options_.rank);
  SHOAL_USER_CHECK(own < members.size(), "group", "rank {} is not one of the group's {} members",
                   options_.rank, members.size());
  std::vector<int> hosts;
  for (const int rank : members) hosts.push_back(hosts_.at(static_cast<std::size_t>(rank)));
  const HostLayout layout(hosts, static_cast<int>(own));
  const bool on_one_host = world_ && layout.hosts() == 1;
  const bool apart = !world_ || layout.hosts() == static_cast<int>(members.size());
  std::unique_ptr<HostCommunicator> host;
  if (on_one_host || !apart) {
    std::vector<int> here;
    for (const int member : layout.members[static_cast<std::size_t>(layout.host)])
      here.push_back(members[static_cast<std::size_t>(member)]);
    host = host_group(here, store, deadline);
  }
  if (on_one_host) return host;
  // One member draws the number and the others read it.
  if (own == 0) store.set("group", std::to_string(new_group_number()), deadline);
  auto tcp = TcpCommunicator::of_members(transport_, tcp_options(), members,
                                         std::stoull(store.wait("group", deadline)));
  if (apart) return tcp;
  return hierarchy(std::move(host), std::move(tcp));
}

std::unique_ptr<HostCommunicator> Fabric::host_group(const std::vector<int>& members,
                                                     wire::KeyValues& store,
                                                     Deadline deadline) const {
  const auto all = ranks_of_this_host();
  // The first member takes memory for the group. It is zero, so the others may use it as soon as
  // they know its offset.
  const std::string key = fmt::format("block/{}", members.front());
  if (members.front() == options_.rank) {
    store.set(key,
              std::to_string(world_->take_control(
                  HostCommunicator::block_bytes(static_cast<int>(members.size())))),
              deadline);
  }
  std::vector<int> here;
  for (const int member : members) here.push_back(static_cast<int>(index_of(all, member)));
  return HostCommunicator::on_block(world_, host_options(), std::stoull(store.wait(key, deadline)),
                                    std::move(here));
}

void Fabric::check() {
  if (!transport_) return world_->check();
  try {
    transport_->check();
  } catch (const Error& cause) {
    if (world_) world_->abort(cause);
    throw;
  }
  if (!world_ || !world_->ended()) return;
  // A rank of this host may have recorded a failure that came from another host. That cause names
  // the right rank, so it is given time to arrive before this one is passed on.
  if (!world_ended_) world_ended_ = Clock::now();
  if (Clock::now() - *world_ended_ < kFirstCauseGrace) return;
  try {
    world_->check();
  } catch (const Error& error) {
    const Error cause = with_job_ranks(error);
    transport_->abort(cause);
    throw Error(cause);
  }
}

void Fabric::abort(const Error& cause) {
  if (transport_) transport_->abort(cause);
  if (world_) world_->abort(cause);
}

void Fabric::propagate(const Error& error) {
  if (!transport_) return;
  for (const Deadline end = Deadline::in(kFirstCauseGrace);;) {
    // The time is read before the check, so that at least one check follows however long this rank
    // was held up.
    const bool late = end.passed();
    try {
      transport_->check();
    } catch (const Error& cause) {
      if (world_) world_->abort(cause);
      return;
    }
    if (late) return abort(with_job_ranks(error));
    transport_->wait_for_event(transport_->events(), std::chrono::milliseconds(5));
  }
}

Error Fabric::with_job_ranks(const Error& error) const {
  if (!transport_ || !world_ || error.size() != world_->size() || error.size() == options_.size)
    return error;
  const auto ranks = ranks_of_this_host();
  const bool known = error.peer() >= 0 && error.peer() < static_cast<int>(ranks.size());
  Error result(error.kind(), error.operation(),
               fmt::format("on the host of ranks {} (0, 1, ... in what follows): {}",
                           fmt::join(ranks, ", "), error.message()));
  return result.at(options_.rank, options_.size)
      .from(known ? ranks[static_cast<std::size_t>(error.peer())] : -1)
      .in(error.sequence())
      .awaiting(error.awaited())
      .hint(error.hint());
}

void Fabric::leave() {
  if (world_) world_->leave();
  if (transport_) transport_->leave();
}

}  // namespace shoal::collective
