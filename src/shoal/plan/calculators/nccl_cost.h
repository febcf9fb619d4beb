#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::plan {

/// The time that NCCL's tuning expects for one algorithm and protocol of a collective: latency +
/// bytes / bandwidth, with the measured latencies of its source (src/graph/tuning.cc).
struct NcclTime {
  std::string algorithm;   ///< "ring", or for all-reduce "tree"
  std::string protocol;    ///< "LL", "LL128" or "Simple"
  double base_us = 0;      ///< to start
  double inside_hops = 0;  ///< each takes `inside_us`
  double between_hops = 0;
  double inside_us = 0;
  double between_us = 0;
  double sent_bytes = 0;  ///< bytes over the slowest link
  double bandwidth =
      0;  ///< bytes/s of that link, times the protocol's share: a half, 92 % or all of it

  double latency_s() const {
    return (base_us + inside_hops * inside_us + between_hops * between_us) * 1e-6;
  }
  double seconds() const { return latency_s() + sent_bytes / bandwidth; }
};

/// A collective over NVLink inside hosts and a network between them. `bytes` is the whole buffer;
/// bandwidths are bytes/s of one rank.
struct NcclQuestion {
  std::string collective = "all_reduce";  ///< or "all_gather", "reduce_scatter"
  std::int64_t hosts = 1;
  std::int64_t per_host = 8;
  double bytes = 0;
  double inside = 300e9;
  double between = 25e9;
};

/// Returns every algorithm and protocol, the fastest first. Throws Error(usage) for another
/// collective, or sizes and rates that are not positive.
std::vector<NcclTime> nccl_times(const NcclQuestion& question);

}  // namespace shoal::plan
