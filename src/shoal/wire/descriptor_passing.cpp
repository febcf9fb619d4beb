#include "shoal/wire/descriptor_passing.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace shoal::wire {

bool send_with(int socket, const void* data, std::size_t bytes,
               const std::vector<int>& descriptors) {
  iovec part{const_cast<void*>(data), bytes};
  std::array<char, CMSG_SPACE(2 * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

bool receive_with(int socket, void* data, std::size_t bytes, std::vector<Descriptor>& descriptors,
                  Deadline deadline) {
  pollfd wait{.fd = socket, .events = POLLIN, .revents = 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count();
  if (poll(&wait, 1, static_cast<int>(std::min<long>(left, 1 << 30))) != 1) return false;
  iovec part{data, bytes};
  // There is room for more descriptors than any message of ours has: the kernel silently drops what
  // does not fit.
  std::array<char, CMSG_SPACE(4 * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  // Every descriptor is taken over, wanted or not: one that is left here would stay open for ever.
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); got >= 0 && header;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return got == static_cast<ssize_t>(bytes) && (message.msg_flags & MSG_TRUNC) == 0;
}

}  // namespace shoal::wire
