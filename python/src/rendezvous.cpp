#include "python/src/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "python/src/torch_store.h"
#include "shoal/base/check.h"
#include "shoal/base/duration.h"
#include "shoal/base/hex.h"
#include "shoal/base/memory_category.h"
#include "shoal/base/number.h"
#include "shoal/comm/allocator.h"
#include "shoal/wire/address.h"
#include "shoal/wire/key_derivation.h"
#include "shoal/wire/rail_count.h"
#include "shoal/wire/tls_mode.h"

namespace shoal::python {
namespace {

using collective::Fabric;

constexpr const char* kOperation = "init_process_group";
constexpr std::string_view kNamePrefix = "torch-";

std::string random_text() {
  std::array<unsigned char, 16> bytes{};
  SHOAL_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
              "no random bytes");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

int rails_of(const std::string& text) {
  if (text.empty()) return 0;
  const auto rails = parse_number<int>(text);
  SHOAL_USER_CHECK(rails && *rails >= 1 && *rails <= wire::kMostRails, kOperation,
                   "rails are connections between two ranks, 1 to {}, not '{}'", wire::kMostRails,
                   text);
  return *rails;
}

Duration silence_of(const std::string& text) {
  if (text.empty()) return {};
  const auto seconds = parse_number<double>(text);
  SHOAL_USER_CHECK(seconds && *seconds > 0 && *seconds <= 86400, kOperation,
                   "silence_s is above 0 and at most 86400 seconds, not '{}'", text);
  return from_seconds(*seconds);
}

wire::TlsMode tls_of(const std::string& text) {
  const auto mode = wire::parse_tls_mode(text.empty() ? "auto" : text);
  SHOAL_USER_CHECK(mode, kOperation, "tls is auto, on or off, not '{}'", text);
  return *mode;
}

collective::RouteMode routes_of(const std::string& text) {
  const auto mode = collective::parse_route_mode(text.empty() ? "natural" : text);
  SHOAL_USER_CHECK(mode, kOperation, "routes is natural or measured, not '{}'", text);
  return *mode;
}

/// The key of all connections, of what rank 0 has drawn for this job and the secret that all ranks
/// were given, if any.
std::string connection_key(const std::string& drawn, const std::string& job_key) {
  if (job_key.empty()) return drawn;
  return hex(wire::derive_key(job_key, drawn, "connections"));
}

Fabric::Options settings_of(const NetworkOptions& network, int rank, int size, Duration timeout) {
  const std::string& transport = network.transport;
  SHOAL_USER_CHECK(transport.empty() || transport == "auto" || transport == "tcp", kOperation,
                   "the transport is auto or tcp, not '{}'", transport);
  return {.rank = rank,
          .size = size,
          .shares_memory = transport != "tcp",
          .network = {.host = network.host,
                      .interface = network.interface,
                      .ports = network.ports.empty() ? wire::PortRange()
                                                     : wire::parse_port_range(network.ports),
                      .advertise = network.advertise,
                      .rails = rails_of(network.rails),
                      .silence = silence_of(network.silence_s),
                      .tls = tls_of(network.tls),
                      .routes = routes_of(network.routes),
                      .in_rank_order = network.in_rank_order},
          .flight = std::make_shared<collective::FlightBook>(),
          .timeout = timeout};
}

std::shared_ptr<wire::Arena> arena_for(int ranks_on_host) {
  return comm::ensure_arena(0, ranks_on_host);
}

/// The channel of all ranks of `fabric`, which have just met.
std::shared_ptr<Channel> channel_of_all(std::shared_ptr<Fabric> fabric, Origin origin,
                                        const std::string& flight_directory) {
  const Fabric::Options& s = fabric->options();
  // The first eight characters of the rendezvous's name, which is random and no secret, tell the
  // flight records of different jobs apart.
  const Flight flight{
      flight_directory, {s.name.substr(kNamePrefix.size(), 8), s.rank, s.size}, s.flight};
  if (!flight_directory.empty()) collective::forget_flight(flight_directory, s.rank);
  auto all = fabric->group_of_all();
  return std::make_shared<Channel>(
      std::make_shared<Progress>(std::move(fabric), std::move(origin), flight), std::move(all));
}

}  // namespace

std::shared_ptr<Channel> rendezvous(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                    int size, Duration timeout, const ShoalOptions& options) {
  const Deadline deadline = Deadline::in(timeout);
  memory_context().rank = rank;
  TorchStore keys(store);
  Fabric::Options settings = settings_of(options.network, rank, size, timeout);
  // Rank 0 draws a name, under which ranks of one host find each other's memory, and a secret key,
  // with which every connection opens.
  if (rank == 0) {
    keys.set("rendezvous", std::string(kNamePrefix) + random_text() + " " + random_text(),
             deadline);
  }
  const std::string name_and_key = keys.wait("rendezvous", deadline);
  settings.name = name_and_key.substr(0, name_and_key.find(' '));
  settings.key =
      connection_key(name_and_key.substr(name_and_key.find(' ') + 1), options.network.job_key);
  return channel_of_all(Fabric::on_hosts(std::move(settings), keys, arena_for, deadline),
                        {store, options.network}, options.flight_directory);
}

std::shared_ptr<Channel> rendezvous_again(const Channel& met, const std::vector<int>& members,
                                          int time, Duration timeout, const ShoalOptions& options) {
  const Deadline deadline = Deadline::in(timeout);
  const Fabric& old = *met.progress->fabric();
  const int rank = static_cast<int>(std::find(members.begin(), members.end(), old.options().rank) -
                                    members.begin());
  const Origin& origin = met.progress->origin();
  Fabric::Options settings =
      settings_of(options.network, rank, static_cast<int>(members.size()), timeout);
  // A name of its own for every attempt and every set of members: ranks that disagree on who is
  // left do not find each other, and time out.
  const auto survivors = std::hash<std::string>{}(fmt::format("{}", fmt::join(members, ",")));
  settings.name = fmt::format("{}.{}.{:x}", old.options().name, time, survivors);
  settings.key = old.options().key;
  memory_context().rank = rank;
  const int host = old.hosts().at(static_cast<std::size_t>(members.front()));
  // Where all share a host, a rendezvous in its file system needs no store, whose process may have
  // been the one that failed.
  const bool together = std::all_of(members.begin(), members.end(), [&](int r) {
    return old.hosts().at(static_cast<std::size_t>(r)) == host;
  });
  std::shared_ptr<Fabric> fabric;
  if (together && settings.shares_memory) {
    fabric = Fabric::on_one_host(std::move(settings), arena_for, deadline);
  } else {
    TorchStore keys(c10::make_intrusive<c10d::PrefixStore>(settings.name, origin.store));
    fabric = Fabric::on_hosts(std::move(settings), keys, arena_for, deadline);
  }
  return channel_of_all(std::move(fabric), {origin.store, options.network},
                        options.flight_directory);
}

std::shared_ptr<Channel> new_group(const c10::intrusive_ptr<c10d::Store>& store, const Channel& met,
                                   const std::vector<int>& members, Duration timeout) {
  // PyTorch gives every group a store with a prefix of its own, so keys of two groups cannot meet.
  TorchStore keys(store);
  return std::make_shared<Channel>(
      met.progress, met.progress->fabric()->group(members, keys, Deadline::in(timeout)));
}

}  // namespace shoal::python
