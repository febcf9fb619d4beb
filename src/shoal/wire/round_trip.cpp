#include "shoal/wire/round_trip.h"

// The kernel's own header: the C library's ends before the shortest round trip.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <limits>

namespace shoal::wire {
namespace {

tcp_info info_of(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return info;
}

}  // namespace

// The kernel measures whatever keeps this process or its peer from running.
Duration round_trip_of(int socket) { return std::chrono::microseconds(info_of(socket).tcpi_rtt); }

Duration least_round_trip_of(int socket) {
  const auto least = info_of(socket).tcpi_min_rtt;
  // The kernel says this before it has measured any.
  if (least == std::numeric_limits<decltype(least)>::max()) return {};
  return std::chrono::microseconds(least);
}

}  // namespace shoal::wire
