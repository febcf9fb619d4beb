#pragma once

#include <cstdint>
#include <string>

namespace shoal {

/// Names the kernel that runs here, anew with each start of the machine. Empty where it cannot be
/// known.
std::string running_kernel();

/// Names the namespace of this process of a kind in /proc/self/ns ("mnt", "pid", "time"). 0 where
/// it cannot be known, or the kernel has no such namespaces.
std::uint64_t namespace_of_this_process(const char* kind);

}  // namespace shoal
