#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/wire/local_rendezvous.h"

namespace shoal::wire {

/// A host, as a number or a name, and a TCP port: "10.0.0.1:7000", "[::1]:7000", "node3:7000".
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  std::string text() const;
  bool operator==(const Endpoint&) const = default;
};
/// Throws Error(config) for anything else.
Endpoint parse_endpoint(std::string_view text);

/// A range of ports, of which a listener takes the first that is free: "7000-7100" or "7000". With
/// "0" the system chooses a port.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};
PortRange parse_port_range(std::string_view text);

/// Returns the address of a network interface, chosen by its name ("eth0") or by a prefix of its
/// address ("10.1.", "fd00:"). Throws Error(config) that lists what there is.
std::string interface_address(std::string_view name_or_prefix);

/// Returns the address of this host that packets to `host`, a number or a name, carry; sends
/// nothing. Empty: there is no route to it.
std::string address_towards(const std::string& host);

/// Returns a non-blocking listening socket on `host` (numeric or name). Throws Error(resource) when
/// no port of the range is free.
Descriptor listen_on(const std::string& host, PortRange ports);
/// Returns a connected non-blocking socket without delay for small messages. Tries every address of
/// the name, again and again, until `deadline`; then throws Error(timeout). Throws Error(resource)
/// at once where this process has no descriptor for it.
Descriptor connect_to(const Endpoint& to, Deadline deadline);
/// As connect_to, but tries every address of the name once. Returns an empty descriptor when none
/// answers.
Descriptor connect_once(const Endpoint& to, Deadline deadline);
/// Nobody listens there: the host, or something on the way that speaks for it, has said so.
class ConnectionRefused final : public Error {
 public:
  explicit ConnectionRefused(const Error& error) : Error(error) {}
};
/// Begins to connect to a numeric address and does not wait: the socket is writable once it is
/// connected or has failed, which `check_connected` tells. Throws Error(config) for a host that is
/// a name, Error(peer_lost) where the attempt fails at once (ConnectionRefused where nobody
/// listens), Error(resource) where this process has no descriptor for it.
Descriptor begin_connect(const Endpoint& to);
/// Throws Error(peer_lost) where connecting has failed, as begin_connect. Otherwise the socket is
/// as one of connect_to.
void check_connected(int socket, const Endpoint& to);
/// Returns the numeric addresses of a host. Throws Error(config) where it has none.
std::vector<Endpoint> resolve_all(const Endpoint& name);
/// Return the two ends of a connected socket: the one on this host, and the one on the other.
Endpoint local_endpoint(int socket);
Endpoint remote_endpoint(int socket);
/// Returns true where the two ends of a connected socket have different addresses: what it sends
/// leaves this host, or its network namespace.
bool leaves_host(int socket);

}  // namespace shoal::wire
