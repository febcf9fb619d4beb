#include "shoal/comm/world.h"

#include <fmt/format.h>

#include <mutex>
#include <thread>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/collective/tcp_communicator.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/communicator_engine.h"
#include "shoal/comm/host_engine.h"
#include "shoal/wire/address.h"
#include "shoal/wire/rendezvous.h"

namespace shoal::comm {
namespace {

using collective::HostCommunicator;
using collective::HostWorld;

std::shared_ptr<wire::Arena> own_arena(const WorldOptions& options, int ranks_of_others) {
  if (!options.arena) return nullptr;
  if (auto arena = installed_arena()) return arena;
  auto arena = std::make_shared<wire::Arena>(wire::Arena::Options{.limit_bytes = options.memory_limit_bytes, .ranks_on_host = ranks_of_others});
  install_arena(arena);
  return arena;
}

bool over_tcp(const WorldOptions& options) {
  return options.transport == Transport::kTcp || (options.transport == Transport::kAutomatic && !options.rendezvous.empty());
}

Group connect_over_tcp(const WorldOptions& options) {
  const Deadline deadline = Deadline::in(options.meeting_timeout);
  const bool one_host = options.rendezvous.empty();
  const std::string place = one_host ? "file:" + wire::meeting_directory() + "/" + options.name + ".store" : options.rendezvous;
  if (!one_host && place.starts_with("file:") && options.interface.empty())
    throw Error(ErrorKind::kConfig, "connect", fmt::format("ranks that meet at {} do not know which address leads to rank 0", place))
        .hint("name the network interface (parallelism.interface), or meet at host:port");
  const std::string address = options.interface.empty() ? "" : wire::interface_address(options.interface);
  // The store serves until the last group of this process is gone: others may still be on their way to each other.
  const auto meeting = std::make_shared<wire::Rendezvous>(place, options.key, options.rank, address.empty() ? "127.0.0.1" : address, deadline);
  auto peers = std::make_shared<wire::Peers>(wire::Peers::Settings{.key = options.key, .host = address}, meeting->store(), options.rank, options.size,
                                             deadline);
  auto communicator = std::make_shared<collective::TcpCommunicator>(
      std::move(peers), collective::TcpCommunicator::Settings{.timeout = options.timeout, .algorithms = options.algorithms});
  return Group(std::make_shared<CommunicatorEngine>(std::move(communicator), meeting));
}

}  // namespace

Group connect(const WorldOptions& options) {
  SHOAL_USER_CHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size, "connect", "rank {} of {}", options.rank, options.size);
  // Where TCP carries everything no peer maps the arena, and LibTorch's own allocator serves as well.
  const auto arena = over_tcp(options) && options.size > 1 ? nullptr : own_arena(options, options.size);
  memory_context().rank = options.rank;
  if (options.size == 1) return {};
  if (over_tcp(options)) return connect_over_tcp(options);
  const wire::Meeting meeting{.name = options.name,
                              .key = options.key,
                              .rank = options.rank,
                              .size = options.size,
                              .control_bytes = HostWorld::control_bytes(),
                              .arena = arena ? &arena->segment() : nullptr};
  auto acquaintance = wire::meet(meeting, Deadline::in(options.meeting_timeout));
  auto world = std::make_shared<HostWorld>(options.rank, std::move(acquaintance), arena ? &arena->segment() : nullptr);
  auto communicator = std::make_shared<HostCommunicator>(std::move(world), HostCommunicator::Settings{.timeout = options.timeout});
  return Group(std::make_shared<HostEngine>(std::move(communicator), arena, false));
}

void run_on_threads(const WorldOptions& options, const std::function<void(const Group&)>& body) {
  SHOAL_USER_CHECK(options.size >= 1, "run_on_threads", "{} ranks", options.size);
  const auto arena = own_arena(options, 1);
  if (options.size == 1) return body({});
  const auto control = std::make_shared<wire::SharedSegment>(wire::SharedSegment::create("shoal-control", HostWorld::control_bytes()));
  std::mutex mutex;
  std::exception_ptr first;
  const auto rank_main = [&](int rank) {
    memory_context().rank = rank;
    const auto world = std::make_shared<HostWorld>(rank, options.size, control);
    const Group group(
        std::make_shared<HostEngine>(std::make_shared<HostCommunicator>(world, HostCommunicator::Settings{.timeout = options.timeout}), arena, true));
    const auto fail = [&](const Error& error) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      group.abort(error);
    };
    try {
      body(group);
    } catch (const Error& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail(Error(ErrorKind::kInternal, "rank", error.what()).at(rank, options.size));
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank) threads.emplace_back(rank_main, rank);
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace shoal::comm
