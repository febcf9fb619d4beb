#pragma once

#include <memory>
#include <string>

#include "shoal/wire/store.h"

namespace shoal::wire {

/// The rendezvous of a job's ranks, on whatever hosts they are: the store that rank 0 holds, and
/// this rank's connection to it.
///
/// `place` is one of
///   "host:port": rank 0 listens there, on the port or, where it is taken, on one of the 15 above
///     it. The others try the same ports; the handshake on the job key tells the store from
///     another program that listens there.
///   "file:/path": rank 0 listens on a free port and writes its address to the file, which all
///     ranks see. It is removed when all are connected, or have given up.
class Rendezvous {
 public:
  /// `host`: the address at which rank 0 listens where `place` is a file. `tls`: whether this
  /// rank's connection to the store is encrypted. Throws Error(config) for a malformed place,
  /// Error(timeout) when rank 0 is not there in time, Error(resource) when no port is free.
  Rendezvous(const std::string& place, const std::string& key, int rank, const std::string& host,
             Deadline deadline, TlsMode tls = TlsMode::kAuto);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  StoreClient& store() { return *client_; }
  /// To be called when every rank has found the store: removes the file that led there, so that a
  /// rank 0 that is killed later leaves none behind.
  void all_ranks_connected();

 private:
  void serve(const std::string& place, const std::string& key, const std::string& host);

  std::string file_;  ///< to be removed; empty: none
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> client_;
};

}  // namespace shoal::wire
