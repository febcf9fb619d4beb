#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/membership/chain.h"
#include "shoal/wire/http_client.h"

namespace shoal::collective::elastic {

/// Keeps the chain of a group (membership/chain.h) in an etcd, version 3.4 or newer, through its
/// gateway for JSON over HTTP. An entry is a key `prefix` + lineage/epoch/number; it is created by
/// one transaction, which compares that there is none, and that the one before it is there. etcd
/// answers when most of its servers have it on disk, so a restart loses nothing. One thread; any
/// may call `stop`.
class EtcdKeeper {
 public:
  struct Options {
    std::vector<std::string> addresses;  ///< "http://HOST:PORT" of its servers
    std::string ca_file{};               ///< that signs them, for https; empty: those of the system
    std::string prefix = "shoal/";       ///< of all keys
    Duration request_timeout = std::chrono::seconds(2);  ///< for each address
  };
  /// Asks which cluster that is. Throws as `answer`, and Error(config) for addresses that are none.
  explicit EtcdKeeper(Options options);

  /// Names the cluster and the prefix: what a view is kept by. All members must have the same.
  const std::string& name() const { return name_; }

  /// Creates entry 0 of a first view, which begins the chain of its lineage. Throws as `answer`.
  void begin(const membership::View& first);

  /// Asks each address in turn until one answers. Throws Error(peer_lost) that says what became of
  /// each where none does, and what it was asked; an answer that is too long, or not etcd's, counts
  /// as none. Throws Error(data) where the key holds no entry.
  membership::ChainAnswered answer(const membership::ChainQuestion& question);

  /// Ends a request that runs, within a second, and all later ones: they throw.
  void stop() { client_.stop(); }

 private:
  struct Reply;
  Reply post(const std::string& path, const std::string& request, const std::string& what);
  Reply post_to(const std::string& address, const std::string& path, const std::string& request);
  std::string key(const membership::ChainSlot& slot) const;

  Options options_;
  wire::HttpClient client_;
  std::size_t next_ = 0;  ///< of the addresses: the last one that has answered
  std::string cluster_;   ///< its id; empty: nobody has answered
  std::string name_;
};

}  // namespace shoal::collective::elastic
