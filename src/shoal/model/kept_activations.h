#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/model/model_spec.h"
#include "shoal/model/tensor_division.h"

namespace shoal::model {

// The bytes that Shoal's own blocks keep from forward to backward, tensor by tensor as the
// operators save them. plan/memory.h describes other systems.

/// Says how much of a block stays for its backward pass; the rest is computed again there (Chen et
/// al., "Training deep nets with sublinear memory cost", 2016; Korthikanti et al., 2022). kProducts
/// keeps the results of matmuls; norms, activations, dropout and attention run twice.
enum class Keep { kEverything, kProducts, kInput };

/// The samples that a rank runs at once.
struct MicroBatch {
  std::int64_t samples = 1;
  std::int64_t columns = 1;  ///< tokens of a sample on this rank; 1 for rows of a table
  double element_bytes = 4;  ///< one activation
  /// One activation as a matmul took it: 2 where weights have 16 bits, to which it was rounded.
  double product_bytes = 4;
  /// Ranks that divide heads, features and the residual stream; each runs all rows.
  std::int64_t tensor_ranks = 1;
  /// How they do; null: as the default recipe says.
  std::shared_ptr<const TensorDivision> division = nullptr;
  /// Ranks that divide the columns of a sample.
  std::int64_t context_ranks = 1;
  /// They exchange columns for heads around attention; otherwise keys and values go round a ring.
  bool exchanges_heads = false;
  /// Ranks among which experts are divided, and the rows of this rank's experts over the mean.
  std::int64_t expert_ranks = 1;
  double expert_imbalance = 1;

  double rows() const { return static_cast<double>(samples) * static_cast<double>(columns); }
  /// Returns how the tensor-parallel ranks divide a block for so many samples: where they divide
  /// these, attention that may run on own samples does.
  BlockDivision division_of(std::int64_t block) const;
  /// Returns the part of the micro-batch whose heads a rank has at a boundary: all rows and some
  /// heads, own samples and all heads, or all of both.
  MicroBatch at_heads(Boundary boundary) const;
};

/// The costs of one block for one micro-batch, under one Keep.
struct BlockCost {
  double kept = 0;     ///< bytes held from forward to backward
  double rebuilt = 0;  ///< further bytes while its backward pass runs
  double flops = 0;    ///< FLOPs that are computed a second time
  /// Bytes of `kept` and `rebuilt` that are free again when the backward pass reaches attention.
  double passed = 0;
};

/// Returns the number of blocks that can be recomputed: those of a transformer, or the layers of an
/// MLP but the last.
std::int64_t block_count(const ModelSpec& spec);
BlockCost block_cost(const ModelSpec& spec, const MicroBatch& batch, std::int64_t block, Keep keep);

/// The choice of the blocks that are recomputed.
struct RecomputePolicy {
  enum class Mode { kNone, kFull, kEveryK, kSelective, kBudget } mode = Mode::kNone;
  std::int64_t every = 2;   ///< kEveryK: blocks k, 2k, 3k ... keep their input alone
  double budget_bytes = 0;  ///< kBudget: the most that blocks_bytes may be
};

/// Returns what each block keeps. kBudget takes the choice that computes least twice among those
/// that fit; it throws Error(config) when none fits, naming the least bytes.
std::vector<Keep> kept_by_block(const ModelSpec& spec, const MicroBatch& batch,
                                const RecomputePolicy& policy);

/// Returns the bytes of all blocks together at the worst moment of a backward pass, which frees
/// what a block keeps when it has passed it: what one block and those before it keep, and what that
/// block rebuilds.
double blocks_bytes(const ModelSpec& spec, const MicroBatch& batch, const std::vector<Keep>& keeps);

}  // namespace shoal::model
