#pragma once

#include <cstdint>
#include <string>

#include "shoal/base/error.h"

namespace shoal::wire {

/// The descriptors that the program and callers in their handshakes need beside the connections.
constexpr std::uint64_t kOtherDescriptors = 768;

/// Raises the limit of descriptors that this process may have open (RLIMIT_NOFILE), as far as it
/// may by itself, so that there is room for `connections` and for what the program and callers in
/// their handshakes need beside them. Returns the limit that holds then.
std::uint64_t allow_descriptors_for(std::uint64_t connections);

/// Returns true where a call has failed with `error` (errno) because this process or this host has
/// no descriptors or no memory left for a socket.
bool lacks_descriptors(int error);

/// Returns the Error(resource) for such a failure. `what` says what could not be done.
Error no_descriptors(const std::string& operation, const std::string& what, int error);

}  // namespace shoal::wire
