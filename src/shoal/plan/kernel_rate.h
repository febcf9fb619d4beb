#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::plan {

/// The work of one call of a kernel, as far as its time depends on it.
struct KernelWork {
  double flops = 0;  ///< FLOPs of its matmuls
  /// Bytes that come from memory whatever ran before: weights and their gradients, optimizer
  /// states.
  double weights = 0;
  double bytes = 0;  ///< bytes that the kernel before may have left in a cache: activations

  bool operator==(const KernelWork&) const = default;
};

struct TimedKernel {
  KernelWork work;
  double seconds = 0;

  bool operator==(const TimedKernel&) const = default;
};

/// The time of a kernel: seconds = start + flops x flop + weights x weight + bytes x byte.
struct KernelRate {
  double start_s = 0;
  double flop_s = 0;
  double weight_s = 0;  ///< a byte
  double byte_s = 0;
  std::vector<TimedKernel> timed{};  ///< the measurements; empty: the four numbers are all there is

  /// Returns the time of this work. With measurements the four numbers are fitted anew for it, and
  /// similar measurements count most: a kernel has other rates for few rows than for many, and once
  /// it is beyond a cache.
  double seconds(const KernelWork& work) const;
  /// Returns these four numbers near `work`, without measurements.
  KernelRate near(const KernelWork& work) const;
  bool operator==(const KernelRate&) const = default;
};

/// Returns the rate without a negative part whose relative errors have the least squares; it keeps
/// `timed`. Throws Error(usage) when nothing was measured or a time is not positive.
KernelRate fit_kernel(const std::vector<TimedKernel>& timed);

// The work of one call of Shoal's kernels. Kernels without a "_backward" of their own do both
// passes. Rows are tokens of a micro-batch.

/// "linear", "linear_backward": [rows, in] times a weight [out, in], with bias and residual.
KernelWork linear_work(double rows, double in, double out);
/// "attention", "attention_backward": causal attention over `samples` sequences.
KernelWork attention_work(double samples, std::int64_t length, double heads, double head_size);
/// "norm", "norm_backward", "activation", "activation_backward", "embedding": one pass that writes
/// a tensor of so many elements.
KernelWork pass_work(double elements);
/// "loss": the matmul with the vocabulary, cross-entropy and both gradients.
KernelWork loss_work(double rows, double hidden, double vocab);
/// "optimizer": the gradient's norm and AdamW; "all_reduce", "reduce_scatter": one tensor.
///
/// "linear_bf16", "linear_backward_bf16", "loss_bf16" and "optimizer_bf16" have weights in bf16,
/// gradients and masters in fp32, and the work of the kernel without "_bf16". A cluster may lack
/// them.
KernelWork memory_work(double elements);

/// Returns true if memory_work is the work of the kernel of this name.
bool streams_memory(const std::string& name);

/// Returns all of these names.
const std::vector<std::string>& kernel_names();

}  // namespace shoal::plan
