#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shoal::python {

/// How the ranks of a job are connected, as a user says it. Every rank may say something else but
/// for `transport` and `in_rank_order`.
struct NetworkOptions {
  std::string transport;  ///< "auto", or empty: shared memory inside a host, TCP between hosts;
                          ///< "tcp": TCP between all ranks
  std::string interface;  ///< TCP: name or prefix of the address to listen on; empty: the one that
                          ///< leads to PyTorch's store
  std::string
      ports;  ///< TCP: "7000-7100": listen on the first that is free; empty: the system chooses
  std::string host;  ///< ranks that name different hosts share no memory, whatever is true
  bool in_rank_order =
      false;  ///< reductions fold in the order of ranks: the same bits on one host and on several
};

/// What `pg_options` of init_process_group may say.
struct ShoalOptions final : c10d::Backend::Options {
  explicit ShoalOptions(std::string flight_directory = "", NetworkOptions network = {},
                        std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : c10d::Backend::Options("shoal", timeout),
        flight_directory(std::move(flight_directory)),
        network(std::move(network)) {}
  /// Where each rank writes what it was doing when a collective fails, and all of it together
  /// (collective::write_flight); empty: nowhere.
  std::string flight_directory;
  NetworkOptions network;
};

}  // namespace shoal::python
