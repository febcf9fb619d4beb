#include "shoal/wire/round_trip.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>

namespace shoal::wire {

// The kernel measures whatever keeps this process or its peer from running.
Duration round_trip_of(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return std::chrono::microseconds(info.tcpi_rtt);
}

}  // namespace shoal::wire
