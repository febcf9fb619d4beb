#pragma once

#include <string>
#include <vector>

#include "shoal/plan/cluster.h"
#include "shoal/plan/training.h"

namespace shoal::plan {

/// The bytes that one device sends in one optimizer step for one technique.
struct Traffic {
  std::string
      technique;  ///< "data", "shard", "replica", "members", "tensor", "vocabulary", "pipeline",
                  ///< "context", "expert", "expert tensor", "second shard", "offload"
  double bytes = 0;
  double between_bytes = 0;  ///< part of `bytes`: over the link between hosts
};

/// Returns the traffic of the busiest pipeline rank (for "data", the one that holds most
/// parameters). Techniques that send nothing are left out, as what ranks of Shoal on one host copy
/// from where it lies (an exchange of heads, rows of experts).
std::vector<Traffic> traffic(const ModelSpec& spec, const Training& training,
                             const Cluster& cluster);

// The closed forms below return elements, or bytes where their name says so, that one device sends.

/// One block and micro-batch: two all-reduces forward and two backward, of b s h elements, and two
/// more when the forward pass is recomputed.
double tensor_elements(std::int64_t ranks, double samples, double length, double hidden,
                       bool recomputed = false);
/// One MoE block and micro-batch: dispatch and combine, forward and backward, of `tokens` x
/// `visits` rows.
double expert_elements(std::int64_t ranks, double tokens, double visits, double hidden);
/// Mean bytes of one element of expert_elements: tokens travel to their experts in
/// `dispatch_bytes`; results and the gradients of both travel in `activation_bytes`. Recomputation
/// makes the two exchanges of the forward pass twice.
double expert_bytes(const Precision& number, bool recomputed = false);
/// One block and micro-batch: keys and values are gathered forward and backward, their gradient is
/// scattered. `length` is that of one rank.
double context_elements(std::int64_t ranks, double samples, double length, double kv_width);
/// One block and micro-batch of Ulysses, where heads are exchanged for positions: queries, keys and
/// values before attention, its output after it, and their gradients.
double ulysses_elements(std::int64_t ranks, double samples, double length, double query_width,
                        double kv_width);
/// Bytes that one device sends in one micro-batch of ZeRO++ for each 16-bit parameter.
struct ZeroPlusPlusBytes {
  double shards = 0;  ///< over all ranks
  double inside = 0;  ///< within a host
};
/// For `ranks` ranks, `inside` of them on each host.
ZeroPlusPlusBytes zero_plus_plus_bytes(std::int64_t ranks, std::int64_t inside);

}  // namespace shoal::plan
