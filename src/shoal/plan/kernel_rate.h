#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::plan {

/// Work of one call of a kernel, as far as time depends on it.
struct KernelWork {
  double flops = 0;    ///< of matrix products
  double weights = 0;  ///< bytes that come from memory, whatever ran before: weights and their
                       ///< gradients, optimizer states
  double bytes = 0;    ///< bytes that the kernel before may have left in a cache: activations

  bool operator==(const KernelWork&) const = default;
};

struct TimedKernel {
  KernelWork work;
  double seconds = 0;

  bool operator==(const TimedKernel&) const = default;
};

/// What a kernel takes: seconds = start + flops x flop + weights x weight + bytes x byte.
struct KernelRate {
  double start_s = 0;
  double flop_s = 0;
  double weight_s = 0;  ///< a byte
  double byte_s = 0;
  std::vector<TimedKernel>
      timed{};  ///< what was measured; empty: the four numbers are all that is known

  /// With measurements the four numbers are fitted anew for this work, and what is like it counts
  /// most: a kernel has other rates for few rows than for many, and once it is beyond a cache.
  double seconds(const KernelWork& work) const;
  /// Those four numbers near `work`, without measurements.
  KernelRate near(const KernelWork& work) const;
  bool operator==(const KernelRate&) const = default;
};

/// The rate whose relative errors have the least squares and that has no negative part; it keeps
/// `timed`. Throws Error(usage) for nothing measured or times that are not positive.
KernelRate fit_kernel(const std::vector<TimedKernel>& timed);

// Shoal's kernels, forward and backward together where they are not named apart, with the work of
// one call. Rows are tokens of a micro-batch.

/// "linear", "linear_backward": rows [rows, in] times a weight [out, in], bias and residual with
/// it.
KernelWork linear_work(double rows, double in, double out);
/// "attention", "attention_backward": causal, over `samples` sequences.
KernelWork attention_work(double samples, std::int64_t length, double heads, double head_size);
/// "norm", "norm_backward", "activation", "activation_backward", "embedding": bytes of the tensor
/// that is written.
KernelWork pass_work(double elements);
/// "loss": the product with the vocabulary, cross-entropy and both gradients.
KernelWork loss_work(double rows, double hidden, double vocab);
/// "optimizer": the gradient's norm and AdamW; "all_reduce", "reduce_scatter": of one tensor.
/// "linear_bf16", "linear_backward_bf16", "loss_bf16", "optimizer_bf16": the same with weights in
/// bf16, gradients and masters in fp32; they may be missing from a cluster.
KernelWork memory_work(double elements);

/// Whether memory_work is what a kernel of this name does.
bool streams_memory(const std::string& name);

/// All of these names.
const std::vector<std::string>& kernel_names();

}  // namespace shoal::plan
