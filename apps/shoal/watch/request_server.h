#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shoal/wire/descriptor.h"

namespace shoal::apps {

/// A place where clients ask: each connection is one request and one answer.
struct Listener {
  wire::Descriptor socket;      ///< listens, does not block
  bool same_user_only = false;  ///< a Unix socket: others than this user and root are turned away
  /// Returns the answer to what a client has sent so far; nothing while its request may go on. Runs
  /// on the server's thread.
  std::function<std::optional<std::string>(std::string_view received)> answer;
};

/// Serves clients on a thread of its own, which takes no signals. A client has two seconds for all:
/// one that says nothing, sends too much or does not read is dropped, and holds up neither the
/// process nor, among the eight that each listener serves at once, other clients.
class RequestServer {
 public:
  /// Throws Error(resource) when the system gives no descriptor or thread.
  explicit RequestServer(std::vector<Listener> listeners);
  /// Drops the clients that are being served.
  ~RequestServer();
  RequestServer(const RequestServer&) = delete;
  RequestServer& operator=(const RequestServer&) = delete;

 private:
  struct Client;

  static bool has_room(const Listener& listener, const std::vector<Client>& clients);
  void serve();
  void accept_clients(const Listener& listener, std::vector<Client>& clients);

  std::vector<Listener> listeners_;
  wire::Descriptor wake_;  ///< an eventfd: readable when the thread is to end
  std::thread thread_;
};

}  // namespace shoal::apps
