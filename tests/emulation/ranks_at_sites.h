#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/rendezvous.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/network_ranks.h"
#include "tests/emulation/wan.h"

// Ranks as threads of one process, one at each site of a Wan.

namespace shoal::emulation {

using Errors = std::vector<std::optional<Error>>;
using Body = std::function<void(collective::TcpCommunicator&)>;

inline std::string meeting_file() {
  return fmt::format("file:{}ranks_at_sites-{}", testing::TempDir(), getpid());
}

struct Meeting {
  std::string place = meeting_file();
  Duration heartbeat = std::chrono::milliseconds(100);
  Duration silence = std::chrono::seconds(60);
  int rails = 0;
  std::function<void(const wire::TcpTransport&)> at_end = {};
};

/// Runs one rank in the calling thread, at the site of its number.
inline void run_rank(const Wan& wan, int rank, const Meeting& meeting, const Body& body) {
  using collective::soon;
  wan.enter(rank);
  wire::Rendezvous rendezvous(meeting.place, "key", rank, wan.address(rank), soon());
  const auto transport = std::make_shared<wire::TcpTransport>(
      wire::TcpTransport::Options{.key = "key",
                                  .heartbeat = meeting.heartbeat,
                                  .silence = meeting.silence,
                                  .rails = meeting.rails},
      rendezvous.store(), rank, wan.sites(), soon());
  collective::TcpCommunicator c(transport, {});
  rendezvous.all_ranks_connected();
  body(c);
  if (meeting.at_end) meeting.at_end(*transport);
}

/// Runs `body` on a rank at each site and returns what each threw. Runs `meanwhile` beside them.
inline Errors at_sites(const Wan& wan, const Meeting& meeting, const Body& body,
                       const std::function<void()>& meanwhile = {}) {
  Errors errors(static_cast<std::size_t>(wan.sites()));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < wan.sites(); ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        run_rank(wan, rank, meeting, body);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
      }
    });
  }
  if (meanwhile) meanwhile();
  for (auto& rank : ranks) rank.join();
  return errors;
}

}  // namespace shoal::emulation
