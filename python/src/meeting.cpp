#include "python/src/meeting.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string_view>

#include "python/src/progress.h"
#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/comm/allocator.h"

namespace shoal::python {
namespace {

using collective::HostCommunicator;
using collective::HostWorld;

constexpr std::string_view kNamePrefix = "torch-";

std::string random_text() {
  std::array<unsigned char, 16> bytes{};
  SHOAL_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "no random bytes");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// What tells hosts apart before anything is shared: "<boot id> <host name>". That memory is shared is proven later, by the meeting itself.
std::string host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return boot + " " + name.data();
}

std::string boot_of(const std::string& host) { return host.substr(0, host.find(' ')); }
std::string name_of(const std::string& host) { return host.substr(host.find(' ') + 1); }

void check_one_host(c10d::Store& store, int rank, int size) {
  store.set(fmt::format("host/{}", rank), host());
  const std::string first = store.get_to_str("host/0");
  for (int r = 1; r < size; ++r) {
    const std::string other = store.get_to_str(fmt::format("host/{}", r));
    SHOAL_USER_CHECK(boot_of(other) == boot_of(first), "init_process_group",
                     "rank 0 runs on {}, rank {} on {}: the shoal backend joins ranks of one host; use gloo between hosts", name_of(first), r,
                     name_of(other));
  }
}

}  // namespace

std::shared_ptr<Channel> meet_through(c10d::Store& store, int rank, int size, Duration timeout, const std::string& flight_directory) {
  check_one_host(store, rank, size);
  if (rank == 0) store.set("meeting", std::string(kNamePrefix) + random_text() + " " + random_text());
  const std::string meeting = store.get_to_str("meeting");
  return meet_at({.name = meeting.substr(0, meeting.find(' ')), .key = meeting.substr(meeting.find(' ') + 1)}, rank, size, timeout, flight_directory);
}

std::shared_ptr<Channel> meet_at(const Place& place, int rank, int size, Duration timeout, const std::string& flight_directory) {
  auto arena = comm::installed_arena();
  if (!arena) {
    arena = std::make_shared<wire::Arena>(wire::Arena::Options{.ranks_on_host = size});
    comm::install_arena(arena);
  }
  memory_context().rank = rank;
  auto acquaintance = wire::meet(
      {.name = place.name, .key = place.key, .rank = rank, .size = size, .control_bytes = HostWorld::control_bytes(), .arena = &arena->segment()},
      Deadline::in(timeout));
  auto world = std::make_shared<HostWorld>(rank, std::move(acquaintance), &arena->segment());
  // The meeting's name is random too, and no secret.
  const Flight flight{flight_directory, {place.name.substr(kNamePrefix.size(), 8), rank, size}, std::make_shared<collective::FlightBook>()};
  if (!flight_directory.empty()) collective::forget_flight(flight_directory, rank);
  auto communicator =
      std::make_unique<HostCommunicator>(world, HostCommunicator::Settings{.timeout = timeout, .flight = flight.book, .world_ranks = {}});
  return std::make_shared<Channel>(std::make_shared<Progress>(std::move(world), place, flight), std::move(communicator));
}

std::shared_ptr<Channel> join_through(c10d::Store& store, const Channel& met, const std::vector<int>& members, Duration timeout) {
  const auto& world = met.progress->world();
  const int ranks = static_cast<int>(members.size());
  if (members.front() == world->rank()) store.set("block", std::to_string(world->take_control(HostCommunicator::block_bytes(ranks))));
  const auto offset = std::stoull(store.get_to_str("block"));
  return std::make_shared<Channel>(
      met.progress,
      HostCommunicator::on_block(world, HostCommunicator::Settings{.timeout = timeout, .flight = met.progress->flight().book, .world_ranks = {}},
                                 offset, members));
}

}  // namespace shoal::python
