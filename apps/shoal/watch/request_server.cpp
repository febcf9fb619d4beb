#include "apps/shoal/watch/request_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

#include "apps/shoal/blocked_signals.h"
#include "shoal/base/clock.h"
#include "shoal/base/system_error.h"

namespace shoal::apps {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);
constexpr std::size_t kClients = 8;        ///< of one listener, at once
constexpr std::size_t kMostBytes = 16384;  ///< of a request; listeners set narrower limits

/// True when the process at the other end of a Unix socket is this user's, or root's.
bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

/// A connection: it is read until there is an answer, then written, then read to its end, so that
/// the answer is not lost with bytes that nobody read.
struct RequestServer::Client {
  const Listener* listener;
  wire::Descriptor socket;
  Deadline deadline = Deadline::in(kPatience);
  std::string received{};
  std::string answer{};
  std::size_t written = 0;
  bool done = false;

  bool writes() const { return written < answer.size(); }

  void advance(short events) {
    if (events == 0) return;
    // Whoever has gone does not want its request carried out any more: it may have waited for long.
    // A client that has only ended its sending still listens.
    if ((events & (POLLHUP | POLLERR)) != 0) {
      done = true;
    } else if (writes()) {
      write();
    } else {
      read();
    }
  }

  void read() {
    char buffer[4096];
    const ssize_t length = ::recv(socket.get(), buffer, sizeof buffer, 0);
    if (length < 0 && would_block()) return;
    if (length <= 0) {
      done = true;
      return;
    }
    // After the answer, bytes are only taken off the socket.
    if (!answer.empty()) return;
    received.append(buffer, static_cast<std::size_t>(length));
    try {
      answer = listener->answer(received).value_or("");
    } catch (const std::exception&) {
      // This client goes without an answer that could not be made, and the job goes on.
      done = true;
      return;
    }
    if (!answer.empty()) {
      write();
    } else {
      done = received.size() > kMostBytes;
    }
  }

  void write() {
    const ssize_t length =
        ::send(socket.get(), answer.data() + written, answer.size() - written, MSG_NOSIGNAL);
    if (length < 0) {
      done = !would_block();
      return;
    }
    written += static_cast<std::size_t>(length);
    if (!writes()) ::shutdown(socket.get(), SHUT_WR);
  }
};

RequestServer::RequestServer(std::vector<Listener> listeners)
    : listeners_(std::move(listeners)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_.get() < 0)
    throw system_error(ErrorKind::kResource, "watch", "cannot make an event descriptor");
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::exception&) {
    throw Error(ErrorKind::kResource, "watch", "cannot start a thread");
  }
}

RequestServer::~RequestServer() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

bool RequestServer::has_room(const Listener& listener, const std::vector<Client>& clients) {
  const auto served = std::count_if(clients.begin(), clients.end(), [&](const Client& client) {
    return client.listener == &listener;
  });
  return static_cast<std::size_t>(served) < kClients;
}

void RequestServer::serve() {
  std::vector<Client> clients;
  for (;;) {
    std::vector<pollfd> waiting{{wake_.get(), POLLIN, 0}};
    Deadline first = Deadline::never();
    for (const Client& client : clients) {
      waiting.push_back(
          {client.socket.get(), static_cast<short>(client.writes() ? POLLOUT : POLLIN), 0});
      if (client.deadline.at() < first.at()) first = client.deadline;
    }
    // Clients beyond those that a listener may serve at once wait in its queue.
    for (const Listener& listener : listeners_)
      if (has_room(listener, clients)) waiting.push_back({listener.socket.get(), POLLIN, 0});
    // One more, as the rest of a millisecond is cut off.
    const int longest_ms =
        clients.empty() ? -1 : static_cast<int>(first.left() / std::chrono::milliseconds(1)) + 1;
    ::poll(waiting.data(), waiting.size(), longest_ms);
    if (waiting[0].revents != 0) return;

    for (std::size_t i = 0; i < clients.size(); ++i) {
      clients[i].advance(waiting[i + 1].revents);
      clients[i].done |= clients[i].deadline.passed();
    }
    std::erase_if(clients, [](const Client& client) { return client.done; });
    for (const Listener& listener : listeners_) accept_clients(listener, clients);
  }
}

void RequestServer::accept_clients(const Listener& listener, std::vector<Client>& clients) {
  while (has_room(listener, clients)) {
    wire::Descriptor socket(
        ::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      // Where the process has no descriptor left, the client stays in the queue and would end each
      // wait at once.
      pollfd end{wake_.get(), POLLIN, 0};
      if (!would_block() && errno != ECONNABORTED) ::poll(&end, 1, 100);
      return;
    }
    if (listener.same_user_only && !is_same_user(socket.get())) continue;
    clients.push_back({.listener = &listener, .socket = std::move(socket)});
  }
}

}  // namespace shoal::apps
