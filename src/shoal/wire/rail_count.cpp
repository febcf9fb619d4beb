#include "shoal/wire/rail_count.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>

namespace shoal::wire {
namespace {

constexpr Duration kNear = std::chrono::milliseconds(5);
constexpr Duration kOfOneRail = std::chrono::milliseconds(12);

}  // namespace

int rails_for(Duration round_trip) {
  if (round_trip < kNear) return 1;
  const auto most = static_cast<Duration::rep>(kMostRails - 1);
  return 1 + static_cast<int>(std::min(most, 1 + round_trip / kOfOneRail));
}

// The kernel measures when it connects, whatever keeps this process or its peer from running.
Duration round_trip_of(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return std::chrono::microseconds(info.tcpi_rtt);
}

}  // namespace shoal::wire
