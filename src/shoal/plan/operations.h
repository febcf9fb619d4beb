#pragma once

#include <vector>

#include "shoal/plan/cluster.h"
#include "shoal/plan/training.h"

namespace shoal::plan {

/// One kernel of a block on one rank: what it computes and moves, forward and backward. Plain data,
/// so that it can be printed and summed.
struct OperationCost {
  const char* what;
  bool product = false;  ///< matmuls limit it; memory limits everything else
  double work = 0;       ///< forward: FLOPs of a matmul, bytes of anything else
  double backward = 0;   ///< FLOPs or bytes of the input gradient
  double weights = 0;    ///< FLOPs or bytes of the weight gradient
  double count = 1;      ///< number of such kernels
  bool core = false;     ///< selective recomputation runs it again
  /// Bytes that a matmul reads or writes forward, whatever its blocking; twice as many backward.
  /// The matmul takes as long as the slower of computing and moving.
  double moved = 0;
  /// fp32 operations that a fused kernel runs beside its matmuls, forward and backward each.
  double vector = 0;
};
std::vector<OperationCost> block_operations(const ModelSpec& spec, const Training& training);
std::vector<OperationCost> head_operations(const ModelSpec& spec, const Training& training);
std::vector<OperationCost> embedding_operations(const ModelSpec& spec, const Training& training);

/// Seconds of one micro-batch in a part of the model on one rank, with the exposed communication of
/// tensor, context and expert parallelism.
struct PieceTime {
  double forward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  /// Part of `input_gradient`: computation that runs again before the backward pass. Its exchange
  /// is part of `communication`.
  double recomputed = 0;
  double communication = 0;  ///< part of the three: waiting for other ranks

  double all() const { return forward + input_gradient + weight_gradient; }
  PieceTime& operator+=(const PieceTime& other);
  PieceTime operator*(double times) const;
};
PieceTime block_time(const ModelSpec& spec, const Training& training, const Cluster& cluster);
PieceTime head_time(const ModelSpec& spec, const Training& training, const Cluster& cluster);
PieceTime embedding_time(const ModelSpec& spec, const Training& training, const Cluster& cluster);

/// Return the seconds of one matmul, and of moving so many bytes, with the device's efficiency.
double product_s(const Cluster& cluster, ElementType type, double flops);
double memory_s(const Cluster& cluster, double bytes);

/// Returns the bytes that the optimizer reads and writes for one parameter of its shard: unscaling,
/// the norm, the update and the cast back.
double optimizer_bytes(const Training& training);

}  // namespace shoal::plan
