#pragma once

#include "apps/shoal/torch/entry.h"
#include "shoal/comm/group.h"

namespace shoal::apps {

/// Says how often kernels are measured, and by which ranks.
struct KernelRounds {
  double seconds = 0;  ///< approximate time of a case
  /// Number of rounds, of which forecast::trimmed_mean drops the slowest: a core that others use
  /// too is slower for seconds at a time.
  int count = 1;
  /// 1: ranks have cores of their own, and the longest of their times counts. More: they share
  /// them, and the mean counts.
  double ranks_per_core = 1;
};

/// Measures the times of Shoal's own operators in fp32; with `bf16` also in bf16 those whose
/// weights may have that type. They run as in a training step: through modules and autograd, with
/// weights, gradients and optimizer states from memory (other layers go forward before a layer goes
/// backward), with activations as the operator before left them, and on all ranks of `group` at the
/// same time. The time of a case is the mean of its calls on a rank. Collective. Names and amounts
/// of work are those of plan/kernel_rate.h.
TimedKernels kernel_times(const comm::Group& group, const KernelRounds& rounds, bool bf16);

/// As above for the few cases that tell how a machine has changed since a calibration: matmuls of
/// many rows and of few, and the optimizer.
TimedKernels drift_kernel_times(const comm::Group& group, const KernelRounds& rounds);

}  // namespace shoal::apps
