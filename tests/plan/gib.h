#pragma once

namespace shoal::plan {

/// Bytes.
inline constexpr double kGiB = 1024.0 * 1024 * 1024;

}  // namespace shoal::plan
