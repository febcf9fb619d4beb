#pragma once

#include <cstddef>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/descriptor.h"

namespace shoal::wire {

/// Sends one message over a local socket, with up to two descriptors (SCM_RIGHTS, unix(7)). Returns
/// false when it could not be sent whole.
bool send_with(int socket, const void* data, std::size_t bytes,
               const std::vector<int>& descriptors);

/// Receives one whole message before the deadline; returns false for anything else. Appends the
/// descriptors that came along, in order.
bool receive_with(int socket, void* data, std::size_t bytes, std::vector<Descriptor>& descriptors,
                  Deadline deadline);

}  // namespace shoal::wire
