#include "shoal/wire/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "shoal/base/number.h"
#include "shoal/base/system_error.h"
#include "shoal/wire/descriptor_limit.h"

namespace shoal::wire {
namespace {

std::uint16_t parse_port(std::string_view text) {
  // parse_number rejects numbers that do not fit into a port, and takes no sign or blank.
  const auto port = parse_number<std::uint16_t>(text);
  if (!port) {
    throw Error(ErrorKind::kConfig, "address", fmt::format("'{}' is not a port", text))
        .hint("a number from 0 to 65535");
  }
  return *port;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, std::uint16_t port, int flags, int* error) {
  addrinfo hints{};
  addrinfo* found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  *error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return Addresses(*error == 0 ? found : nullptr, &freeaddrinfo);
}

std::string numeric(const sockaddr* address, socklen_t length, std::uint16_t* port = nullptr) {
  char host[NI_MAXHOST];
  char service[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof host, service, sizeof service,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  if (port) *port = parse_port(service);
  return host;
}

void set_option(int fd, int level, int option) {
  const int on = 1;
  setsockopt(fd, level, option, &on, sizeof on);
}

/// A socket on loopback may connect to itself when it tries a free port of the ephemeral range.
bool connects_to_itself(int socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof own;
  socklen_t peer_size = sizeof peer;
  getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size);
  getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size);
  std::uint16_t own_port = 0;
  std::uint16_t peer_port = 0;
  const auto own_host = numeric(reinterpret_cast<sockaddr*>(&own), own_size, &own_port);
  return own_host == numeric(reinterpret_cast<sockaddr*>(&peer), peer_size, &peer_port) &&
         own_port == peer_port;
}

[[noreturn]] void throw_not_connected(const std::string& what, int error) {
  errno = error;
  const Error thrown = system_error(ErrorKind::kPeerLost, "connect", what);
  if (error == ECONNREFUSED) throw ConnectionRefused(thrown);
  throw Error(thrown);
}

/// Connects within `deadline`; returns an empty descriptor when this address does not answer.
Descriptor try_connect(const addrinfo& to, Deadline deadline) {
  Descriptor fd(socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) {
    // It says nothing of the address, and another attempt would fail as well.
    if (lacks_descriptors(errno))
      throw no_descriptors("connect", "cannot open another connection", errno);
    return Descriptor();
  }
  if (connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return Descriptor();
    // An address that drops packets is given up after two seconds, so that the other addresses of a
    // name get their turn before the deadline.
    pollfd ready{fd.get(), POLLOUT, 0};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count();
    if (poll(&ready, 1, static_cast<int>(std::min<long long>(ms + 1, 2000))) != 1)
      return Descriptor();
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
      return Descriptor();
  }
  if (connects_to_itself(fd.get())) return Descriptor();
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY);
  return fd;
}

/// Tries every address of the name once. `error`: why the name has none, or 0.
Descriptor try_connect(const Endpoint& to, Deadline deadline, int* error) {
  const Addresses addresses = resolve(to.host, to.port, 0, error);
  if (*error == EAI_SYSTEM && lacks_descriptors(errno))
    throw no_descriptors("connect", "cannot ask for the address of " + to.host, errno);
  for (const addrinfo* a = addresses.get(); a; a = a->ai_next)
    if (Descriptor fd = try_connect(*a, deadline); fd.get() >= 0) return fd;
  return Descriptor();
}

}  // namespace

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Endpoint parse_endpoint(std::string_view text) {
  // The last colon separates the port. An IPv6 address has colons too and must stand in brackets; a
  // NUL would end the name early for getaddrinfo, which takes a C string.
  const auto colon = text.rfind(':');
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const auto foreign = bracketed ? std::string_view("[]\0", 3) : std::string_view(":[]\0", 4);
  if (colon == text.npos || host.empty() || host.find_first_of(foreign) != host.npos ||
      host.size() > 255) {
    throw Error(ErrorKind::kConfig, "address",
                fmt::format("'{}' is not a host and a port", text.substr(0, 300)))
        .hint("write host:port or [ipv6]:port");
  }
  return {std::string(host), parse_port(text.substr(colon + 1))};
}

PortRange parse_port_range(std::string_view text) {
  const auto dash = text.find('-');
  const std::uint16_t first = parse_port(text.substr(0, dash));
  const std::uint16_t last = dash == text.npos ? first : parse_port(text.substr(dash + 1));
  if (last < first)
    throw Error(ErrorKind::kConfig, "address", fmt::format("'{}' is not a range of ports", text));
  return {first, last};
}

std::string interface_address(std::string_view wanted) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    throw system_error(ErrorKind::kResource, "address", "cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(list, &freeifaddrs);
  std::string known;
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) continue;
    const bool four = i->ifa_addr->sa_family == AF_INET;
    if (!four && i->ifa_addr->sa_family != AF_INET6) continue;
    const std::string address =
        numeric(i->ifa_addr, four ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (wanted == i->ifa_name || (!wanted.empty() && address.starts_with(wanted))) return address;
    known += fmt::format(" {}={}", i->ifa_name, address);
  }
  throw Error(ErrorKind::kConfig, "address",
              fmt::format("no interface has the name or address '{}'", wanted))
      .hint("there are:" + known);
}

std::string address_towards(const std::string& host) {
  int error = 0;
  // Connecting a datagram socket sends nothing: the kernel chooses the route, and with it the
  // source address. The port (discard) plays no part.
  const Addresses addresses = resolve(host, 9, 0, &error);
  for (const addrinfo* a = addresses.get(); a; a = a->ai_next) {
    const Descriptor fd(socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd.get() >= 0 && connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0)
      return local_endpoint(fd.get()).host;
  }
  return {};
}

Descriptor listen_on(const std::string& host, PortRange ports) {
  int last_error = EADDRINUSE;
  for (int port = ports.first; port <= ports.last; ++port) {
    int error = 0;
    const Addresses addresses = resolve(host, static_cast<std::uint16_t>(port), AI_PASSIVE, &error);
    if (!addresses) {
      throw Error(ErrorKind::kConfig, "listen",
                  fmt::format("cannot resolve '{}': {}", host, gai_strerror(error)));
    }
    Descriptor fd(socket(addresses->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    // Without it, connections of an earlier job in TIME_WAIT would keep the port for a minute.
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR);
    if (bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) == 0 &&
        listen(fd.get(), SOMAXCONN) == 0)
      return fd;
    last_error = errno;
  }
  errno = last_error;
  throw system_error(ErrorKind::kResource, "listen",
                     fmt::format("no port of {}-{} on {} is free", ports.first, ports.last, host));
}

Descriptor connect_to(const Endpoint& to, Deadline deadline) {
  for (;;) {
    // The name is resolved anew in each round, because a node that is still starting may not be in
    // the name service yet. A refused connection may only mean that the peer does not listen yet.
    int error = 0;
    if (Descriptor fd = try_connect(to, deadline, &error); fd.get() >= 0) return fd;
    if (deadline.passed()) {
      throw Error(ErrorKind::kTimeout, "connect",
                  error ? fmt::format("cannot resolve '{}': {}", to.host, gai_strerror(error))
                        : fmt::format("nothing answers at {}", to.text()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Descriptor connect_once(const Endpoint& to, Deadline deadline) {
  int error = 0;
  return try_connect(to, deadline, &error);
}

Descriptor begin_connect(const Endpoint& to) {
  int error = 0;
  const Addresses addresses = resolve(to.host, to.port, AI_NUMERICHOST, &error);
  if (!addresses) {
    throw Error(ErrorKind::kConfig, "connect",
                fmt::format("'{}' is not a numeric address: {}", to.host, gai_strerror(error)));
  }
  Descriptor fd(socket(addresses->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) throw no_descriptors("connect", "cannot open another connection", errno);
  if (connect(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 && errno != EINPROGRESS)
    throw_not_connected("cannot connect to " + to.text(), errno);
  return fd;
}

void check_connected(int socket, const Endpoint& to) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) throw_not_connected("nobody answers at " + to.text(), error);
  if (connects_to_itself(socket))
    throw Error(ErrorKind::kPeerLost, "connect", "nobody answers at " + to.text());
  set_option(socket, IPPROTO_TCP, TCP_NODELAY);
}

std::vector<Endpoint> resolve_all(const Endpoint& name) {
  int error = 0;
  std::vector<Endpoint> found;
  const Addresses addresses = resolve(name.host, name.port, 0, &error);
  for (const addrinfo* a = addresses.get(); a; a = a->ai_next)
    found.push_back({numeric(a->ai_addr, a->ai_addrlen), name.port});
  if (found.empty()) {
    throw Error(ErrorKind::kConfig, "connect",
                fmt::format("cannot resolve '{}': {}", name.host, gai_strerror(error)));
  }
  return found;
}

namespace {
Endpoint endpoint_of(int socket, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (name(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw system_error(ErrorKind::kPeerLost, "address", "a connection broke before it was used");
  Endpoint result;
  result.host = numeric(reinterpret_cast<sockaddr*>(&address), size, &result.port);
  return result;
}
}  // namespace

Endpoint local_endpoint(int socket) { return endpoint_of(socket, getsockname); }
Endpoint remote_endpoint(int socket) { return endpoint_of(socket, getpeername); }

bool leaves_host(int socket) { return local_endpoint(socket).host != remote_endpoint(socket).host; }

}  // namespace shoal::wire
