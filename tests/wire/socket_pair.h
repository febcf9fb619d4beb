#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <utility>

#include "shoal/wire/descriptor.h"

namespace shoal::wire {

/// The two ends of a connection within this process. They do not block.
inline std::pair<Descriptor, Descriptor> socket_pair(int type = SOCK_STREAM) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace shoal::wire
