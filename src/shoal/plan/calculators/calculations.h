#pragma once

#include <cstdint>
#include <string>

#include "shoal/plan/calculators/nccl_cost.h"
#include "shoal/plan/collective_cost.h"

namespace shoal::plan {

/// A number with the formula that gave it, on one line.
struct Calculation {
  double value = 0;
  std::string line;
};

/// Returns ceil(samples / (batch x ranks)); `batch` is that of one rank.
Calculation iterations_per_epoch(std::int64_t samples, std::int64_t batch, std::int64_t ranks);
/// Returns iterations x epochs: one all-reduce of the gradients an iteration.
Calculation collectives_per_run(std::int64_t samples, std::int64_t batch, std::int64_t ranks,
                                std::int64_t epochs);
/// Returns the time of the exchange of one epoch: iterations x the ring all-reduce of `bytes` of
/// gradients over the link.
Calculation exchange_per_epoch(std::int64_t samples, std::int64_t batch, std::int64_t ranks,
                               double bytes, AlphaBeta link);
/// Compares ring and binomial tree for one all-reduce. Returns the seconds of the faster one; the
/// line has both.
Calculation ring_against_tree(std::int64_t ranks, double bytes, AlphaBeta link);
/// Returns the time of the fastest algorithm and protocol of a collective by NCCL's own model, with
/// latencies hop by hop.
Calculation nccl_choice(const NcclQuestion& question);
/// Returns the bytes of the model states of one rank under a ZeRO stage, 16 bytes a parameter in
/// all.
Calculation zero_memory(double parameters, int stage, std::int64_t ranks);
/// Returns the share of its peak that a device reaches when its operands come over a link, with
/// `intensity` FLOPs a byte. Parameters and gradients of a transformer have one of samples x
/// tokens, optimizer states a quarter of it, checkpoints of `c` blocks 24 hidden c. Rajbhandari et
/// al., "ZeRO-Infinity", 2021, equation 6.
Calculation offload_efficiency(double intensity, double bandwidth, double peak);
/// The bytes that a device needs when states and checkpoints live elsewhere: the largest matmul of
/// a block, 4 h x h parameters and their gradients in 16 bits, and everything between two
/// checkpoints that are `blocks` blocks apart. Rajbhandari et al., "ZeRO-Infinity", 2021, equations
/// 4 and 5. The line also has the size of the checkpoints of `layers` blocks (equation 3).
struct WorkingSet {
  double hidden = 0;
  double heads = 0;
  double samples = 1;
  double length = 0;
  double layers = 0;
  double blocks = 1;

  double states() const { return 4 * hidden * 4 * hidden; }
  double activations() const {
    return samples * length * blocks * (16 * hidden + 2 * heads * length);
  }
  double checkpoints() const { return 2 * samples * length * hidden * layers / blocks; }
};
Calculation offload_working_set(const WorkingSet& set);
/// Returns the tokens that each rank of ring attention needs so that keys and values arrive while
/// it computes: peak / bandwidth, for as many key as query heads, in 16 bits.
Calculation ring_attention_tokens(double bandwidth, double peak);
/// Returns the number of segments into which `layers` blocks are best cut when each segment keeps
/// its input alone: the inputs and one segment at work take the least memory together. `inside` and
/// `input` are bytes of one block. Narayanan et al., SC 2021, section 3.5.
Calculation best_checkpoints(std::int64_t layers, double inside, double input);

}  // namespace shoal::plan
