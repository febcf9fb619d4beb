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
/// "grouped", "grouped_backward": the products of so many experts, [rows, in] sorted by expert with
/// a weight [out, in] for each.
KernelWork grouped_work(double rows, double experts, double in, double out);
/// "routing", "routing_backward": a router's choice of `choices` experts a token, the copies of
/// rows for them, and the sum of their results.
KernelWork routing_work(double rows, double width, double experts, double choices);
/// "attention", "attention_backward": causal attention over `samples` sequences.
KernelWork attention_work(double samples, std::int64_t length, double heads, double head_size);
/// "ring_attention", "ring_attention_backward": causal attention between `ranks` ranks that have
/// two parts of every sequence each, an early and a late one. The work is that of the busiest rank.
KernelWork ring_attention_work(double samples, std::int64_t length, std::int64_t ranks,
                               double heads, double head_size);
/// "head_attention", "head_attention_backward": the same by an exchange of columns for heads.
/// `heads`: of all those ranks.
KernelWork head_attention_work(double samples, std::int64_t length, std::int64_t ranks,
                               double heads, double head_size);
/// "norm", "norm_backward", "activation", "activation_backward", "embedding": one pass that writes
/// a tensor of so many elements.
KernelWork pass_work(double elements);
/// "loss": the matmul with the vocabulary, cross-entropy and both gradients. "loss_part": the same
/// where `vocab` is this rank's part of it.
KernelWork loss_work(double rows, double hidden, double vocab);
/// "optimizer": the gradient's norm and AdamW. "all_reduce", "reduce_scatter": one tensor of many
/// that leave while the rank computes. "gather", "scatter": the stream of tensor-parallel ranks,
/// whose next operator waits for it; elements of all ranks. "dispatch", "dispatch_backward": rows
/// to the ranks of their experts and their results back; elements of this rank's rows. "message": a
/// tensor to one rank while another one comes.
///
/// "linear_bf16", "linear_backward_bf16", "grouped_bf16", "grouped_backward_bf16", "loss_bf16",
/// "loss_part_bf16" and "optimizer_bf16" have weights in bf16, gradients and masters in fp32, and
/// the work of the kernel without "_bf16". A cluster may lack them.
KernelWork memory_work(double elements);

/// Returns true for a kernel that does little but read and write memory: "optimizer",
/// "optimizer_bf16", "all_reduce" and "reduce_scatter".
bool streams_memory(const std::string& name);

/// Returns true for a kernel in which ranks wait for each other: "gather", "scatter", "dispatch",
/// "dispatch_backward", "message".
bool waits_for_ranks(const std::string& name);

/// Returns all of these names.
const std::vector<std::string>& kernel_names();

}  // namespace shoal::plan
