#pragma once

#include <vector>

#include "shoal/plan/cluster.h"
#include "shoal/plan/training.h"

namespace shoal::plan {

/// One kernel of a block on one rank: what it computes and moves, forward and backward. Plain data,
/// so that it can be printed and summed.
struct OperationCost {
  const char* what;
  bool product = false;  ///< limited by matrix products; otherwise by memory
  double work = 0;       ///< forward: FLOPs of a product, bytes of anything else
  double backward = 0;   ///< the same for the input gradient
  double weights = 0;    ///< the same for the weight gradient
  double count = 1;      ///< how many such kernels
  bool core = false;     ///< recomputed under selective recomputation
  double moved =
      0;  ///< of a product: bytes that it reads or writes whatever its blocking, forward; twice as
          ///< many backward. It takes as long as the slower of computing and moving
  double vector =
      0;  ///< of a fused kernel: fp32 operations beside its products, forward and backward each
};
std::vector<OperationCost> block_operations(const ModelSpec& spec, const Training& training);
std::vector<OperationCost> head_operations(const ModelSpec& spec, const Training& training);
std::vector<OperationCost> embedding_operations(const ModelSpec& spec, const Training& training);

/// Seconds of one micro-batch in a piece of the model on one rank. Exposed communication of tensor,
/// context and expert parallelism is inside.
struct PieceTime {
  double forward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  double recomputed = 0;  ///< of that, computation that is run again before the backward pass; its
                          ///< exchange is part of `communication`
  double communication = 0;  ///< of all that, waiting for other ranks

  double all() const { return forward + input_gradient + weight_gradient; }
  PieceTime& operator+=(const PieceTime& other);
  PieceTime operator*(double times) const;
};
PieceTime block_time(const ModelSpec& spec, const Training& training, const Cluster& cluster);
PieceTime head_time(const ModelSpec& spec, const Training& training, const Cluster& cluster);
PieceTime embedding_time(const ModelSpec& spec, const Training& training, const Cluster& cluster);

/// Seconds of one product or of moving so many bytes, with the device's efficiency.
double product_s(const Cluster& cluster, ElementType type, double flops);
double memory_s(const Cluster& cluster, double bytes);

/// Bytes that the optimizer reads and writes for one parameter of its shard: unscaling, the norm,
/// the update and the cast back.
double optimizer_bytes(const Training& training);

}  // namespace shoal::plan
