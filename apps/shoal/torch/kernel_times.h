#pragma once

#include <functional>

#include "apps/shoal/torch/entry.h"
#include "shoal/comm/group.h"

namespace shoal::apps {

/// How often kernels are measured, and by whom.
struct KernelRounds {
  double seconds = 0;  ///< about, a case
  /// Rounds, of which forecast::trimmed_mean drops the slowest: a core is slower for seconds at a
  /// time where others use it too.
  int count = 1;
  bool own_cores =
      false;  ///< ranks have cores of their own: the longest of their times counts, else the mean
};

/// What Shoal's own operators take in fp32, and with `bf16` those that differ by the type of their
/// weights in bf16 too, measured as a training step runs them: through modules and autograd,
/// weights, gradients and optimizer states from memory (other layers go forward before a layer goes
/// backward), activations as the operator before left them, all ranks of `group` at the same time:
/// the mean of a case's calls on a rank. Collective. Names and works are those of
/// plan/kernel_rate.h.
TimedKernels kernel_times(const comm::Group& group, const KernelRounds& rounds, bool bf16);

/// The same of the few cases that tell how a machine has changed since: products of many rows and
/// of few, and the optimizer.
TimedKernels drift_kernel_times(const comm::Group& group, const KernelRounds& rounds);

/// The median time of one call, after three that do not count; `together` is called before and
/// after.
double median_s(const std::function<void()>& call, double seconds,
                const std::function<void()>& together);

}  // namespace shoal::apps
