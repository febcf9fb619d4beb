#include "shoal/comm/world.h"

#include <exception>
#include <thread>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/collective/fabric.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/departure.h"
#include "shoal/comm/mpi_engine.h"
#include "shoal/comm/network_world.h"

namespace shoal::comm {
namespace {

using collective::HostCommunicator;
using collective::HostWorld;

bool over_network(const WorldOptions& options) {
  return options.transport == Transport::kTcp ||
         (options.transport == Transport::kAutomatic && !options.rendezvous.empty());
}

}  // namespace

Group connect(const WorldOptions& options) {
  SHOAL_USER_CHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size, "connect",
                   "rank {} of {}", options.rank, options.size);
  // What this thread allocates from here on counts for this rank.
  memory_context().rank = options.rank;
  if (options.transport == Transport::kMpi) return connect_over_mpi(options);
  if (options.size > 1 && over_network(options)) return connect_over_network(options);
  const auto arena =
      options.arena ? ensure_arena(options.memory_limit_bytes, options.size) : nullptr;
  if (options.size == 1) return {};
  const auto fabric = collective::Fabric::on_one_host(
      {.name = options.name,
       .key = options.key,
       .rank = options.rank,
       .size = options.size,
       .flight = options.flight,
       .timeout = options.timeout,
       .progress = std::make_shared<collective::Progress>()},
      [&](int) { return arena; }, Deadline::in(options.meeting_timeout));
  return Group(fabric->group_of_all(), std::make_shared<Departure>(fabric));
}

void run_on_threads(const WorldOptions& options, const std::function<void(const Group&)>& body) {
  SHOAL_USER_CHECK(options.size >= 1, "run_on_threads", "{} ranks", options.size);
  const auto arena = options.arena ? ensure_arena(options.memory_limit_bytes, 1) : nullptr;
  if (options.size == 1) return body({});
  // Each rank has a HostWorld of its own over the same control memory, as processes have.
  const auto control = std::make_shared<wire::SharedSegment>(
      wire::SharedSegment::create("shoal-control", HostWorld::control_bytes()));
  std::vector<std::shared_ptr<HostWorld>> worlds;
  for (int rank = 0; rank < options.size; ++rank)
    worlds.push_back(std::make_shared<HostWorld>(rank, options.size, control));
  std::vector<std::exception_ptr> failures(worlds.size());
  const auto rank_main = [&](int rank) {
    memory_context().rank = rank;
    const Group group(std::make_shared<HostCommunicator>(
        worlds[rank],
        HostCommunicator::Options{.timeout = options.timeout,
                                  .flight = options.flight,
                                  .arena = arena,
                                  .progress = std::make_shared<collective::Progress>()}));
    try {
      body(group);
    } catch (const std::exception& thrown) {
      failures[rank] = std::current_exception();
      const auto* error = dynamic_cast<const Error*>(&thrown);
      // The other ranks may wait for this one: they throw its error as their own.
      group.abort(error
                      ? *error
                      : Error(ErrorKind::kInternal, "rank", thrown.what()).at(rank, options.size));
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank) threads.emplace_back(rank_main, rank);
  for (auto& thread : threads) thread.join();
  // The rank whose failure stopped the others may be the last to come out of its body.
  const int cause = worlds.front()->cause_rank();
  if (cause >= 0 && failures[cause]) std::rethrow_exception(failures[cause]);
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace shoal::comm
