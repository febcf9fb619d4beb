#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shoal::python {

/// The user's choice of connections between the ranks of a job. Only `transport`, `tls`,
/// `routes`, `job_key` and `in_rank_order` must be the same on all ranks.
struct NetworkOptions {
  /// "auto" or empty: shared memory inside a host, TCP between hosts. "tcp": TCP between all ranks.
  std::string transport;
  /// TCP: name or prefix of the address that the rank listens on; empty: the address that leads to
  /// PyTorch's store.
  std::string interface;
  /// TCP: "7000-7100" listens on the first of them that is free; empty: the system chooses.
  std::string ports;
  /// TCP: where others reach this rank behind an address translator, "HOST" or "HOST:PORT", as
  /// wire::advertised_at reads it; empty: at the address that it listens on.
  std::string advertise;
  /// TCP: connections between two ranks, "1" to "64"; empty: as many as their round trip asks for.
  std::string rails;
  /// TCP: seconds after which a rank is lost from which nothing comes; empty: by the round trip.
  std::string silence_s;
  /// TCP: connections that are encrypted: "auto" or empty: those that leave the host; "on", "off".
  std::string tls;
  /// TCP: "natural" or empty: rings go in the order of ranks; "measured": ranks that are far apart
  /// measure the links between them.
  std::string routes;
  /// A secret that all ranks know. Without it the key of all connections is what rank 0 has put
  /// into PyTorch's store, which hides it from nobody.
  std::string job_key;
  /// Ranks that name different hosts share no memory, even where they could.
  std::string host;
  /// Reductions fold in the order of ranks and so give the same bits on one host and on several.
  bool in_rank_order = false;
};

/// The `pg_options` of init_process_group.
struct ShoalOptions final : c10d::Backend::Options {
  explicit ShoalOptions(std::string flight_directory = "", NetworkOptions network = {},
                        std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : c10d::Backend::Options("shoal", timeout),
        flight_directory(std::move(flight_directory)),
        network(std::move(network)) {}
  /// The folder into which each rank writes its flight record when a collective fails
  /// (collective::write_flight); empty: nothing is written.
  std::string flight_directory;
  NetworkOptions network;
};

}  // namespace shoal::python
