#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

namespace shoal::collective {

/// Returns the rails between ranks of this process but the first of each two, which alone is not
/// probed by the kernel, or all of them. Looks at descriptors below `end`.
inline std::vector<int> connections(bool but_the_first, int end = 1024) {
  std::vector<int> result;
  for (int fd = end - 1; fd > 2; --fd) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    int probed = 0;
    socklen_t probed_size = sizeof probed;
    getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &probed, &probed_size);
    if (address.sin_family == AF_INET && (probed != 0 || !but_the_first)) result.push_back(fd);
  }
  return result;
}

/// Breaks a connection, so that both ends meet an error.
inline bool break_connection(int fd) {
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  // As a call of its own: ThreadSanitizer takes connect() for the making of a descriptor.
  return syscall(SYS_connect, fd, &nowhere, sizeof nowhere) == 0;
}

}  // namespace shoal::collective
