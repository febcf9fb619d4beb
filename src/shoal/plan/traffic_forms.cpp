#include "shoal/plan/collective_cost.h"
#include "shoal/plan/traffic.h"

namespace shoal::plan {

double tensor_elements(std::int64_t ranks, double samples, double length, double hidden,
                       bool recomputed) {
  // An all-reduce sends 2 (n - 1) / n of b s h: two of them forward and two backward make 8, a
  // repeated forward pass 4 more (Narayanan et al., SC 2021, section 3.2).
  return (recomputed ? 12 : 8) * samples * length * hidden * exchanged_share(ranks);
}

double expert_elements(std::int64_t ranks, double tokens, double visits, double hidden) {
  // dispatch and combine, forward and backward
  return 4 * tokens * visits * hidden * exchanged_share(ranks);
}

double expert_bytes(const Precision& number, bool recomputed) {
  const double forward = number.dispatch_bytes + number.activation_bytes;
  const double backward = 2 * number.activation_bytes;
  return ((recomputed ? 2 : 1) * forward + backward) / 4;
}

double context_elements(std::int64_t ranks, double samples, double length, double kv_width) {
  // The gathered keys and values have ranks x length rows each; every rank sends its own to the
  // ranks - 1 others.
  return 3 * 2 * samples * (length * ranks) * kv_width * exchanged_share(ranks);
}

double ulysses_elements(std::int64_t ranks, double samples, double length, double query_width,
                        double kv_width) {
  // forward and backward; queries and output, keys and values
  return 2 * samples * length * (2 * query_width + 2 * kv_width) * exchanged_share(ranks);
}

ZeroPlusPlusBytes zero_plus_plus_bytes(std::int64_t ranks, std::int64_t inside) {
  // Parameters take 8 bits forward and 16 bits for the backward pass, gradients 4 bits.
  return {exchanged_share(ranks) * (1 + 0.5), exchanged_share(inside) * 2};
}

}  // namespace shoal::plan
