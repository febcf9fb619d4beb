#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::plan {

/// What NCCL's own tuning expects of one way of a collective: its model is latency + bytes /
/// bandwidth per algorithm and protocol, with latencies that were measured once and stand in its
/// source (src/graph/tuning.cc).
struct NcclTime {
  std::string algorithm;   ///< "ring", or for all-reduce "tree"
  std::string protocol;    ///< "LL", "LL128" or "Simple"
  double base_us = 0;      ///< of starting
  double inside_hops = 0;  ///< of `inside_us` each
  double between_hops = 0;
  double inside_us = 0;
  double between_us = 0;
  double sent_bytes = 0;  ///< over the slowest link
  double bandwidth = 0;   ///< of that link, with the protocol's share: a half, 92 % or all of it

  double latency_s() const {
    return (base_us + inside_hops * inside_us + between_hops * between_us) * 1e-6;
  }
  double seconds() const { return latency_s() + sent_bytes / bandwidth; }
};

/// NVLink inside hosts, a network between them; bytes of the whole buffer, bandwidths in bytes/s of
/// one rank.
struct NcclQuestion {
  std::string collective = "all_reduce";  ///< or "all_gather", "reduce_scatter"
  std::int64_t hosts = 1;
  std::int64_t per_host = 8;
  double bytes = 0;
  double inside = 300e9;
  double between = 25e9;
};

/// Every way, the fastest first. Throws Error(usage) for another collective, or sizes and rates
/// that are not positive.
std::vector<NcclTime> nccl_times(const NcclQuestion& question);

}  // namespace shoal::plan
