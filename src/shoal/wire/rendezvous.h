#pragma once

#include <memory>
#include <string>

#include "shoal/wire/store.h"

namespace shoal::wire {

/// Where the ranks of a job meet whatever host they are on: the store that rank 0 holds, and this
/// rank's way to it.
///
/// `place` is one of
///   "host:port": rank 0 listens there, on the port or, where it is taken, on one of the 15 above
///   it; the others try the same ports, and the
///     handshake on the job key tells the store from whatever else listens there;
///   "file:/path": rank 0 listens on a free port and writes its address to the file, which all
///   ranks see; it is removed when all have come, or given up.
class Rendezvous {
 public:
  /// `host`: the address at which rank 0 listens where `place` is a file. Throws Error(config) for
  /// a place that is none, Error(timeout) when nobody is there in time, Error(resource) when no
  /// port is free.
  Rendezvous(const std::string& place, const std::string& key, int rank, const std::string& host,
             Deadline deadline);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  StoreClient& store() { return *client_; }
  /// Every rank has found the store: a file that led there is removed, so that a rank 0 that is
  /// killed later leaves none behind.
  void all_have_come();

 private:
  void open(const std::string& place, const std::string& key, const std::string& host);

  std::string file_;  ///< to be removed; empty: none
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> client_;
};

}  // namespace shoal::wire
