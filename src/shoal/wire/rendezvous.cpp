#include "shoal/wire/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/file.h"

namespace shoal::wire {
namespace {

constexpr std::string_view kFile = "file:";
constexpr int kPorts = 16;

PortRange ports_from(std::uint16_t first) {
  return {first, static_cast<std::uint16_t>(std::min(first + kPorts - 1, 65535))};
}

/// Waits for the file. Rank 0 renames it into place, so it is complete once it is there.
Endpoint read_endpoint(const std::string& path, Deadline deadline) {
  for (;;) {
    std::string text;
    if (std::ifstream file(path); std::getline(file, text)) return parse_endpoint(text);
    if (deadline.passed()) {
      throw Error(ErrorKind::kTimeout, "rendezvous", fmt::format("rank 0 did not write {}", path))
          .hint("look at rank 0's log");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

/// Tries all ports in turn, again and again. A port that answers gets half a second to prove that
/// it is the store. One that refuses costs nothing: of a store that starts late, every port but one
/// may refuse.
std::unique_ptr<StoreClient> find_store(const std::string& host, PortRange ports,
                                        const std::string& key, Deadline deadline) {
  for (;;) {
    for (int port = ports.first; port <= ports.last; ++port) {
      const Deadline end =
          Deadline::in(std::min<Duration>(deadline.left(), std::chrono::milliseconds(500)));
      try {
        Descriptor socket = connect_once({host, static_cast<std::uint16_t>(port)}, end);
        if (socket.get() < 0) continue;
        return std::make_unique<StoreClient>(std::move(socket), key, end);
      } catch (const Error& error) {
        // Nobody listens, another program does, or it is a store of another job: the next port.
        if (error.kind() != ErrorKind::kTimeout && error.kind() != ErrorKind::kPeerLost) throw;
      }
    }
    if (deadline.passed()) {
      throw Error(
          ErrorKind::kTimeout, "rendezvous",
          fmt::format("no store of this job at {}, ports {} to {}", host, ports.first, ports.last))
          .from(0)
          .hint("is rank 0 running there, is the port open, and have all ranks the same job key?");
    }
    // Each port of the next round may ask the name service anew.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

Rendezvous::Rendezvous(const std::string& place, const std::string& key, int rank,
                       const std::string& host, Deadline deadline) {
  const bool by_file = place.starts_with(kFile);
  const std::string path = by_file ? place.substr(kFile.size()) : "";
  if (rank == 0) {
    serve(place, key, host);
    client_ = std::make_unique<StoreClient>(server_->endpoint(), key, deadline);
  } else if (by_file) {
    client_ = std::make_unique<StoreClient>(read_endpoint(path, deadline), key, deadline);
  } else {
    const Endpoint there = parse_endpoint(place);
    client_ = find_store(there.host, ports_from(there.port), key, deadline);
  }
}

void Rendezvous::serve(const std::string& place, const std::string& key, const std::string& host) {
  if (!place.starts_with(kFile)) {
    const Endpoint there = parse_endpoint(place);
    server_ = std::make_unique<StoreServer>(there.host, ports_from(there.port), key);
    return;
  }
  file_ = place.substr(kFile.size());
  server_ = std::make_unique<StoreServer>(host, PortRange{}, key);
  // The server listens by now: a rank that reads the address finds it.
  replace_text(file_, server_->endpoint().text() + "\n", "rendezvous");
}

void Rendezvous::all_ranks_connected() {
  if (!file_.empty()) std::remove(file_.c_str());
  file_.clear();
}

Rendezvous::~Rendezvous() { all_ranks_connected(); }

}  // namespace shoal::wire
