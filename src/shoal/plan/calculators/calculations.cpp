#include "shoal/plan/calculators/calculations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/check.h"
#include "shoal/plan/memory.h"

namespace shoal::plan {
namespace {

void require_positive(const char* what, double value) {
  SHOAL_USER_CHECK(value > 0 && std::isfinite(value), "plan", "{} = {}: must be positive", what,
                   value);
}

constexpr double kMost = 9007199254740992;  // 2^53: beyond it a double skips whole numbers

std::int64_t iterations(std::int64_t samples, std::int64_t batch, std::int64_t ranks) {
  require_positive("samples", static_cast<double>(samples));
  require_positive("batch", static_cast<double>(batch));
  require_positive("ranks", static_cast<double>(ranks));
  SHOAL_USER_CHECK(
      static_cast<double>(batch) * static_cast<double>(ranks) + static_cast<double>(samples) <
          kMost,
      "plan", "samples, batch and ranks are more than can be counted: samples={} batch={} ranks={}",
      samples, batch, ranks);
  // ceil() in whole numbers; the check above keeps the sum from overflowing.
  return (samples + batch * ranks - 1) / (batch * ranks);
}

void require_link(AlphaBeta link) {
  SHOAL_USER_CHECK(link.alpha >= 0 && std::isfinite(link.alpha), "plan",
                   "latency = {} s: must be a number, not negative", link.alpha);
  SHOAL_USER_CHECK(link.beta > 0 && link.beta < 1e300, "plan",
                   "bandwidth = {} bytes/s: must be positive", 1 / link.beta);
}

}  // namespace

Calculation iterations_per_epoch(std::int64_t samples, std::int64_t batch, std::int64_t ranks) {
  const std::int64_t n = iterations(samples, batch, ranks);
  return {static_cast<double>(n),
          fmt::format("ceil({} samples / ({} a rank x {} ranks)) = {} iterations an epoch", samples,
                      batch, ranks, n)};
}

Calculation collectives_per_run(std::int64_t samples, std::int64_t batch, std::int64_t ranks,
                                std::int64_t epochs) {
  require_positive("epochs", static_cast<double>(epochs));
  const std::int64_t n = iterations(samples, batch, ranks);
  SHOAL_USER_CHECK(static_cast<double>(n) * static_cast<double>(epochs) < kMost, "plan",
                   "epochs = {}: more than 2^53 collectives", epochs);
  return {static_cast<double>(n * epochs),
          fmt::format(
              "{} iterations an epoch x {} epochs x 1 all-reduce of the gradients = {} collectives",
              n, epochs, n * epochs)};
}

Calculation exchange_per_epoch(std::int64_t samples, std::int64_t batch, std::int64_t ranks,
                               double bytes, AlphaBeta link) {
  require_positive("bytes", bytes);
  require_link(link);
  const std::int64_t n = iterations(samples, batch, ranks);
  // No overlap: the calculators show the formula, not a plan.
  const double one = ring_all_reduce_s(ranks, bytes, link);
  return {n * one,
          fmt::format("{} iterations x [2 ({} - 1) x {:.3g} s + 2 ({} - 1)/{} x {:.4g} B / {:.4g} "
                      "B/s = {:.4g} s] = {:.4g} s an epoch",
                      n, ranks, link.alpha, ranks, ranks, bytes, 1 / link.beta, one, n * one)};
}

Calculation ring_against_tree(std::int64_t ranks, double bytes, AlphaBeta link) {
  require_positive("ranks", static_cast<double>(ranks));
  require_positive("bytes", bytes);
  require_link(link);
  const double ring = ring_all_reduce_s(ranks, bytes, link);
  const double tree = tree_all_reduce_s(ranks, bytes, link);
  return {std::min(ring, tree),
          fmt::format("ring 2 (n-1) a + 2 (n-1)/n S b = {:.4g} s, tree 2 ceil(log2 n) (a + S b) = "
                      "{:.4g} s: {} wins (n = {}, a = {:.3g} s, S = {:.4g} B, 1/b = "
                      "{:.4g} B/s)",
                      ring, tree, ring <= tree ? "the ring" : "the tree", ranks, link.alpha, bytes,
                      1 / link.beta)};
}

Calculation nccl_choice(const NcclQuestion& question) {
  const NcclTime best = nccl_times(question).front();
  std::string hops =
      fmt::format("{:.4g} us + {:.4g} x {:.4g} us", best.base_us, best.inside_hops, best.inside_us);
  if (best.between_hops > 0)
    hops += fmt::format(" + {:.4g} x {:.4g} us between hosts", best.between_hops, best.between_us);
  return {best.seconds(),
          fmt::format("{}, {}: {} + {:.4g} B / {:.4g} B/s = {:.4g} s", best.algorithm,
                      best.protocol, hops, best.sent_bytes, best.bandwidth, best.seconds())};
}

Calculation zero_memory(double parameters, int stage, std::int64_t ranks) {
  require_positive("parameters", parameters);
  require_positive("ranks", static_cast<double>(ranks));
  SHOAL_USER_CHECK(stage >= 0 && stage <= 3, "plan", "zero = {}: must lie between 0 and 3", stage);
  const double bytes =
      parameters * state_bytes(precision("mixed")->state, stage, static_cast<double>(ranks)).all();
  const char* formulas[] = {"2 + 2 + 12", "2 + 2 + 12/n", "2 + 14/n", "16/n"};
  return {bytes, fmt::format("{:.4g} parameters x ({}) bytes, n = {} = {:.4g} GB a rank",
                             parameters, formulas[stage], ranks, bytes / 1e9)};
}

Calculation offload_efficiency(double intensity, double bandwidth, double peak) {
  require_positive("intensity", intensity);
  require_positive("bandwidth", bandwidth);
  require_positive("peak", peak);
  // Computing takes 1 / peak a FLOP and moving 1 / (intensity bandwidth): the share of the former
  // in their sum.
  const double share = intensity * bandwidth / (intensity * bandwidth + peak);
  return {share, fmt::format("{:.4g} FLOP/B x {:.4g} B/s / ({:.4g} FLOP/B x {:.4g} B/s + {:.4g} "
                             "FLOP/s) = {:.1f} % of the peak",
                             intensity, bandwidth, intensity, bandwidth, peak, 100 * share)};
}

Calculation offload_working_set(const WorkingSet& set) {
  require_positive("hidden", set.hidden);
  require_positive("heads", set.heads);
  require_positive("samples", set.samples);
  require_positive("length", set.length);
  require_positive("layers", set.layers);
  require_positive("blocks", set.blocks);
  const double bytes = set.states() + set.activations();
  return {bytes, fmt::format("4 h x 4 h = {:.4g} GB of parameters and gradients, b s c (16 h + 2 a "
                             "s) = {:.4g} GB of activations: {:.4g} GB on the device; "
                             "checkpoints 2 b s h L / c = {:.4g} GB elsewhere (h = {}, a = {}, b = "
                             "{}, s = {}, L = {}, c = {})",
                             set.states() / 1e9, set.activations() / 1e9, bytes / 1e9,
                             set.checkpoints() / 1e9, set.hidden, set.heads, set.samples,
                             set.length, set.layers, set.blocks)};
}

Calculation ring_attention_tokens(double bandwidth, double peak) {
  require_positive("bandwidth", bandwidth);
  require_positive("peak", peak);
  // Liu et al., "Ring attention", 2023: a block of c tokens takes 4 h c^2 FLOPs and sends 4 h c
  // bytes of keys and values.
  const double tokens = peak / bandwidth;
  return {tokens,
          fmt::format("4 h c^2 / {:.4g} FLOP/s >= 4 h c / {:.4g} B/s from c = {:.0f} tokens a rank",
                      peak, bandwidth, std::ceil(tokens))};
}

Calculation best_checkpoints(std::int64_t layers, double inside, double input) {
  require_positive("layers", static_cast<double>(layers));
  require_positive("inside", inside);
  require_positive("input", input);
  // The least of c input + (layers / c) inside, where the derivative is zero.
  const double pieces = std::sqrt(static_cast<double>(layers) * inside / input);
  return {
      pieces,
      fmt::format("sqrt({} blocks x {:.4g} B inside one / {:.4g} B of its input) = {:.1f} pieces",
                  layers, inside, input, pieces)};
}

}  // namespace shoal::plan
