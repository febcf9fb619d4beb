#pragma once

#include <string>
#include <vector>

#include "shoal/schedule/action.h"

namespace shoal::schedule {

// Every generator throws Error(usage) for counts below one or outside the bounds that it names. In
// the comments, p is the number of ranks and m that of micro-batches.

/// Plain model parallelism: each micro-batch goes forward and backward through all stages before
/// the next one begins. Every rank holds one, and one rank works at a time: (p - 1) / p of a step's
/// time is lost.
Schedule in_turn(int ranks, int micro_batches);

/// All forwards, then all backwards; every rank holds m activations. Huang et al., "GPipe", 2019.
Schedule gpipe(int ranks, int micro_batches);

/// One forward, one backward: rank i holds min(m, p - i) activations. Narayanan et al.,
/// "PipeDream-Flush", 2021.
Schedule one_forward_one_backward(int ranks, int micro_batches);

/// 1F1B with `chunks` stages a rank, stage s on rank s mod p: bubbles shrink by `chunks`. Needs m
/// mod p = 0 unless chunks = 1. Narayanan et al., "Efficient large-scale language model training on
/// GPU clusters", SC 2021.
Schedule interleaved(int ranks, int chunks, int micro_batches);

/// 1F1B in which weight gradients fill the bubbles; no more activations than 1F1B. Qi et al., "Zero
/// bubble pipeline parallelism", 2023.
Schedule zero_bubble_h1(int ranks, int micro_batches);

/// Like ZB-H1 with 2p - 1 activations. It has no bubble when forward, input gradient and weight
/// gradient take equally long.
Schedule zero_bubble_h2(int ranks, int micro_batches);

/// Two stages a rank in a V (rank i holds i and 2p - 1 - i), without a bubble at the memory of
/// 1F1B. Qi et al., 2023, and Qi et al., "Pipeline parallelism with controllable memory", 2024.
Schedule zero_bubble_v(int ranks, int micro_batches);

/// DeepSeek's DualPipe cut in half along its symmetry, in a V. Needs m >= 2p. DeepSeek-AI,
/// "DualPipe", 2025.
Schedule dual_pipe_v(int ranks, int micro_batches);

/// Makes a schedule by its name: "in_turn", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2",
/// "zb-v", "dualpipe-v". `chunks` must be what the schedule has (1; 2 for the V-shaped ones; any
/// for "interleaved").
Schedule make_schedule(const std::string& name, int ranks, int chunks, int micro_batches);
std::vector<std::string> schedule_names();

}  // namespace shoal::schedule
