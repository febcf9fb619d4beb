#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "shoal/base/clock.h"

namespace shoal::wire {

struct HttpAnswer {
  long status = 0;
  std::string body;
};

/// Sends requests to servers over HTTP/1.1, with or without TLS (libcurl; a build without it has
/// none). A connection is kept for the next request. It follows no redirection, and takes no proxy
/// from the environment. One thread; any may call `stop`.
class HttpClient {
 public:
  struct Options {
    std::string ca_file{};  ///< certificates that sign those of servers; empty: those of the system
    std::size_t most_bytes = std::size_t{1} << 22;  ///< of an answer
  };
  /// Whether this build knows libcurl and it can be loaded, which the first call tries.
  static bool is_available();

  /// Throws Error(config) where is_available() is false.
  explicit HttpClient(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Sends `json` by POST, and returns what the server answers, whatever its status. Throws
  /// Error(peer_lost) where the server cannot be reached or the answer breaks off, Error(timeout)
  /// at the deadline, Error(data) where the answer is too long, and Error(aborted) after `stop`;
  /// each names the address.
  HttpAnswer post(const std::string& url, const std::string& json, Deadline deadline);

  /// Ends the request that runs, within a second, and all later ones.
  void stop() { stop_ = true; }

 private:
  struct Handle;
  Options options_;
  std::unique_ptr<Handle> handle_;
  std::atomic<bool> stop_{false};
};

/// Throws Error(config) unless `text` is "http://HOST:PORT" or "https://HOST:PORT".
void check_http_address(const std::string& text);

}  // namespace shoal::wire
