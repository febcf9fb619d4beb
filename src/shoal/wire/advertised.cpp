#include "shoal/wire/advertised.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/error.h"

namespace shoal::wire {

Endpoint advertised_at(std::string_view text, const Endpoint& listens_at, PortRange ports) {
  const auto colons = std::count(text.begin(), text.end(), ':');
  const bool names_port = text.starts_with('[') || colons == 1;
  if (!names_port) {
    // parse_endpoint looks at the host, and brackets that of IPv6.
    const std::string host = colons > 1 ? fmt::format("[{}]", text) : std::string(text);
    return parse_endpoint(fmt::format("{}:{}", host, listens_at.port));
  }
  Endpoint there = parse_endpoint(text);
  if (ports.first == 0) {
    throw Error(ErrorKind::kConfig, "address",
                fmt::format("'{}' names the port by which the first one of a range is reached, and "
                            "the system chooses the ports on which ranks listen",
                            text))
        .hint("name a range of ports too");
  }
  const int port = there.port + listens_at.port - ports.first;
  if (port < 1 || port > 65535)
    throw Error(ErrorKind::kConfig, "address", fmt::format("'{}' leads to port {}", text, port));
  there.port = static_cast<std::uint16_t>(port);
  return there;
}

void check_advertised(std::string_view text, PortRange ports) {
  if (!text.empty()) advertised_at(text, {"", ports.first}, ports);
}

std::string advertised_like(const Endpoint& there, const Endpoint& listens_at, PortRange ports) {
  if (ports.first == 0) return there.host;
  const int first = there.port - listens_at.port + ports.first;
  if (first < 1 || first > 65535) {
    throw Error(ErrorKind::kConfig, "address",
                fmt::format("others reach port {} at {}: the first port, {}, has none there",
                            listens_at.port, there.text(), ports.first));
  }
  return Endpoint{there.host, static_cast<std::uint16_t>(first)}.text();
}

std::string text_of(const std::vector<Endpoint>& addresses) {
  std::string text;
  for (const Endpoint& address : addresses) text += (text.empty() ? "" : " ") + address.text();
  return text;
}

std::vector<Endpoint> parse_addresses(std::string_view text) {
  std::vector<Endpoint> addresses;
  for (;;) {
    const auto space = text.find(' ');
    addresses.push_back(parse_endpoint(text.substr(0, space)));
    if (space == text.npos) return addresses;
    text.remove_prefix(space + 1);
  }
}

}  // namespace shoal::wire
