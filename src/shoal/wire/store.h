#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/address.h"
#include "shoal/wire/key_values.h"
#include "shoal/wire/link.h"
#include "shoal/wire/tls_mode.h"

namespace shoal::wire {

/// Keys and values through which ranks find each other. Rank 0 holds them and serves them in a
/// thread of its own. Keys have up to 4 KiB, values up to 16 MiB. Callers prove that they know the
/// job key. Each decides whether its connection runs TLS, but none does without it where the
/// server's mode wants it.
class StoreServer {
 public:
  /// Listens on `host`, on the first free port of `ports`. Throws Error(resource).
  StoreServer(const std::string& host, PortRange ports, const std::string& key,
              TlsMode tls = TlsMode::kAuto);
  ~StoreServer();
  Endpoint endpoint() const { return endpoint_; }

 private:
  class Service;
  Endpoint endpoint_;
  std::unique_ptr<Service> service_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// One rank's connection to the store, for one thread at a time. Every call throws Error(timeout)
/// after its deadline and Error(peer_lost) when the server is gone.
class StoreClient final : public KeyValues {
 public:
  /// Throws Error(usage) where the server wants TLS and this mode does without.
  StoreClient(const Endpoint& server, const std::string& key, Deadline deadline,
              TlsMode tls = TlsMode::kAuto);
  /// `socket` is connected to what may be the server.
  StoreClient(Descriptor socket, const std::string& key, Deadline deadline,
              TlsMode tls = TlsMode::kAuto);
  void set(const std::string& key, const std::string& value, Deadline deadline) override;
  std::optional<std::string> get(const std::string& key, Deadline deadline);
  std::string wait(const std::string& key, Deadline deadline) override;
  /// Asks for all at once, and gets one answer: it takes one round trip when all are there. Where
  /// some are missing at the deadline, up to a second more.
  std::vector<std::optional<std::string>> wait_all(const std::vector<std::string>& keys,
                                                   Deadline deadline,
                                                   const std::function<void()>& check) override;
  /// Adds to a counter that begins at 0 and returns the sum; the value is decimal text. Throws
  /// Error(usage) where there is something else.
  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline);
  /// The address of this host on the connection to the server.
  std::string address() override { return local_endpoint(link_.fd()).host; }

 private:
  struct Reply {
    std::uint64_t status;
    std::string value;
  };
  Reply request(int what, const std::string& key, const std::string& value, Deadline deadline);
  void exchange(const std::string& key, Deadline deadline,
                const std::function<void(Stream, const Bytes&)>& take);

  Link link_;
  std::uint64_t requests_ = 0;
};

}  // namespace shoal::wire
