#pragma once

namespace shoal {

/// Bytes in a megabyte (10^6, as reports of memory print it) and in a gibibyte (2^30, as memory
/// of processors and GPUs is sold).
inline constexpr double kMB = 1e6;
inline constexpr double kGiB = 1024.0 * 1024 * 1024;

}  // namespace shoal
