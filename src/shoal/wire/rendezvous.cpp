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

/// How long an attempt to reach the store may take: a connection and its handshake are three round
/// trips. A program that listens and says nothing takes all of it, so the first attempts are short.
/// After a round in which one was too short, each may take twice as long: the store may be far away
/// or on a busy host.
class AttemptLimit {
 public:
  Deadline of_attempt(Deadline deadline) const {
    return Deadline::in(std::min<Duration>(deadline.left(), limit_));
  }
  void note(Deadline of_attempt) { was_short_ = was_short_ || of_attempt.passed(); }
  void next_round() {
    if (std::exchange(was_short_, false))
      limit_ = std::min<Duration>(2 * limit_, std::chrono::seconds(4));
  }

 private:
  Duration limit_ = std::chrono::milliseconds(500);
  bool was_short_ = false;
};

/// Returns the first line of a file; empty where there is none.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Returns a client of the store at `at`; null where nobody listens, another program does, or it is
/// a store of another job.
std::unique_ptr<StoreClient> try_store(const Endpoint& at, const std::string& key, TlsMode tls,
                                       AttemptLimit& limit, Deadline deadline) {
  const Deadline end = limit.of_attempt(deadline);
  try {
    Descriptor socket = connect_once(at, end);
    if (socket.get() >= 0) return std::make_unique<StoreClient>(std::move(socket), key, end, tls);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kTimeout && error.kind() != ErrorKind::kPeerLost) throw;
  }
  limit.note(end);
  return nullptr;
}

/// Waits for the file and for the store that it names. The file may be left from an earlier job, so
/// it is read anew for each attempt. Rank 0 renames it into place, so it is complete once it is
/// there.
std::unique_ptr<StoreClient> find_store_by_file(const std::string& path, const std::string& key,
                                                TlsMode tls, Deadline deadline) {
  std::string named;
  for (AttemptLimit limit;; limit.next_round()) {
    if (const std::string text = first_line(path); !text.empty()) {
      named = text;
      if (auto client = try_store(parse_endpoint(text), key, tls, limit, deadline)) return client;
    }
    if (deadline.passed()) {
      const std::string what =
          named.empty() ? fmt::format("rank 0 did not write {}", path)
                        : fmt::format("no store of this job at {}, which {} names", named, path);
      throw Error(ErrorKind::kTimeout, "rendezvous", what).from(0).hint("look at rank 0's log");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(named.empty() ? 2 : 10));
  }
}

/// Tries all ports in turn, again and again. One that refuses costs a round trip: of a store that
/// starts late, every port but one may refuse.
std::unique_ptr<StoreClient> find_store(const std::string& host, PortRange ports,
                                        const std::string& key, TlsMode tls, Deadline deadline) {
  for (AttemptLimit limit;; limit.next_round()) {
    for (int port = ports.first; port <= ports.last; ++port) {
      const Endpoint at{host, static_cast<std::uint16_t>(port)};
      if (auto client = try_store(at, key, tls, limit, deadline)) return client;
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
                       const std::string& host, Deadline deadline, TlsMode tls) {
  const bool by_file = place.starts_with(kFile);
  const std::string path = by_file ? place.substr(kFile.size()) : "";
  if (rank == 0) {
    serve(place, key, host);
    client_ = std::make_unique<StoreClient>(server_->endpoint(), key, deadline, tls);
  } else if (by_file) {
    client_ = find_store_by_file(path, key, tls, deadline);
  } else {
    const Endpoint there = parse_endpoint(place);
    client_ = find_store(there.host, ports_from(there.port), key, tls, deadline);
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
